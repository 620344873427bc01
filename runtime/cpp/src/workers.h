// Several batches at once (runtime/workers.py).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "search.h"

namespace translate_trt::runtime {

// Processor cores that this process may use.
int available_cores();

// Translates sentences with several workers, of which the calling thread is one.
//
// make_search: gives a worker its batch; any thread. sentences: in any order, their `index` below
// `count`. log: is told of workers that died.
// Returns, by the sentence's index, its n best hypotheses; none for an index that no sentence has.
// A backend error if the backend failed twice with the same sentences.
std::vector<std::vector<Hypothesis>> search_all(
    const std::function<std::unique_ptr<Search>()>& make_search, const Sentences& sentences,
    std::size_t count, int workers, const std::function<void(const std::string&)>& log);

}  // namespace translate_trt::runtime
