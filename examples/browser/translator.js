// Bundles and translation for a worker of a page (worker.js) and for Node.js (measure.js).

"use strict";

// Calls a function of the module and returns its text. Throws the error that it answers with.
function call(module, name, types, values) {
  const answer = module.ccall(name, "string", types, values);
  if (answer[0] === "-") throw new Error(answer.slice(1));
  return answer.slice(1);
}

// Returns the paths of the files that a target needs. target: "" takes the first one.
function filesOf(manifest, target) {
  const chosen = manifest.targets[target || Object.keys(manifest.targets)[0]];
  if (chosen === undefined) {
    throw new Error(`the bundle has no target ${target}, only ${Object.keys(manifest.targets)}`);
  }
  const entries = [...Object.values(manifest.tokenizer), ...Object.values(chosen.files)];
  return [...new Set(entries.map((entry) => entry.path))];
}

class Translator {
  // Loads a bundle into a module that createTranslateTrt has made.
  //
  // read: returns a promise of a file of the bundle, by its path, as an ArrayBuffer.
  static async load(module, read, target = "") {
    const manifest = await read("manifest.json");
    const files = { "manifest.json": manifest };
    for (const path of filesOf(JSON.parse(new TextDecoder().decode(manifest)), target)) {
      files[path] = await read(path);
    }
    const { FS } = module;
    for (const [path, content] of Object.entries(files)) {
      FS.mkdirTree(`/bundle/${path}`.replace(/\/[^/]*$/, ""));
      FS.writeFile(`/bundle/${path}`, new Uint8Array(content), { canOwn: true });  // not a copy
    }
    const translator = new Translator();
    translator.module = module;
    try {
      translator.kernels = call(module, "load_bundle", ["string", "string"], ["/bundle", target]);
    } finally {
      Translator.#remove(FS, "/bundle");  // the module has what it needs in its own memory
    }
    return translator;
  }

  static #remove(FS, folder) {
    for (const name of FS.readdir(folder)) {
      if (name === "." || name === "..") continue;
      const path = `${folder}/${name}`;
      if (FS.isDir(FS.stat(path).mode)) Translator.#remove(FS, path);
      else FS.unlink(path);
    }
    FS.rmdir(folder);
  }

  // Translates lines, which have no line breaks. beamSize: 0 takes the bundle's.
  translate(lines, beamSize = 0) {
    if (lines.length === 0) return [];
    const text = lines.map((line) => `${line.replace(/[\n\r\0]/g, " ")}\n`).join("");
    const { module } = this;
    // Not by ccall, which would copy the text to the stack.
    const size = module.lengthBytesUTF8(text) + 1;
    const address = module._malloc(size);
    try {
      module.stringToUTF8(text, address, size);
      return call(module, "translate_lines", ["number", "number"], [address, beamSize])
        .split("\n").slice(0, -1);
    } finally {
      module._free(address);
    }
  }
}

if (typeof module !== "undefined") module.exports = { Translator };
