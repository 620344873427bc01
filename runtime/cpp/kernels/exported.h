// Functions that the library exports.
#pragma once

#ifdef _WIN32
#define TRANSLATE_TRT_EXPORT extern "C" __declspec(dllexport)
#else
#define TRANSLATE_TRT_EXPORT extern "C" __attribute__((visibility("default")))
#endif
