// A Web Worker that translates: the page stays responsive.
//
// {load: files, target} loads a bundle, with `files` the address of its folder or its files by their
// paths; {translate: lines, beamSize} translates. The answer is {id, result} or {id, error}, with
// the id of the message.

"use strict";

importScripts("translator.js", "translate_trt_module.js");

let translator = null;

// Reads files below an address, or of a map from paths to File or ArrayBuffer.
function reader(files) {
  if (typeof files !== "string") {
    return async (path) => {
      const file = files[path];
      if (file === undefined) throw new Error(`the folder has no file ${path}`);
      return file instanceof ArrayBuffer ? file : file.arrayBuffer();
    };
  }
  return async (path) => {
    const response = await fetch(`${files}/${path}`);
    if (!response.ok) throw new Error(`${response.url}: ${response.status}`);
    return response.arrayBuffer();
  };
}

async function answer({ load, target, translate, beamSize }) {
  if (load !== undefined) {
    translator = null;
    translator = await Translator.load(await createTranslateTrt(), reader(load), target);
    return translator.kernels;
  }
  if (translator === null) throw new Error("there is no model: load a bundle first.");
  const began = performance.now();
  return { lines: translator.translate(translate, beamSize), ms: performance.now() - began };
}

let last = Promise.resolve();
onmessage = ({ data }) => {
  last = last.then(() => answer(data)).then(
    (result) => postMessage({ id: data.id, result }),
    (error) => postMessage({ id: data.id, error: error.message }),
  );
};
