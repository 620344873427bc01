// Translates lines of standard input in Node.js, and reports words of the source per second:
//
//   node build/browser/site/measure.js bundle/ onnx-int8 [beam size] < test.en > test.de

"use strict";

const fs = require("fs");
const path = require("path");
const { Translator } = require("./translator.js");
const createTranslateTrt = require("./translate_trt_module.js");

const LINES = 64; // of a call

async function main([bundle, target = "", beamSize = "0"]) {
  if (bundle === undefined) throw new Error("name a bundle: measure.js BUNDLE [TARGET] [BEAM_SIZE]");
  const lines = fs.readFileSync(0, "utf8").split("\n").slice(0, -1);
  let began = performance.now();
  const seconds = () => (performance.now() - began) / 1000;
  const module = await createTranslateTrt({
    wasmBinary: fs.readFileSync(path.join(__dirname, "translate_trt_module.wasm")),
  });
  const read = async (name) => Uint8Array.from(fs.readFileSync(path.join(bundle, name))).buffer;
  const translator = await Translator.load(module, read, target);
  console.error(`${translator.kernels}, loaded in ${seconds().toFixed(2)} s`);
  translator.translate(lines.slice(0, 1), Number(beamSize)); // allocates memory
  began = performance.now();
  for (let i = 0; i < lines.length; i += LINES) {
    const found = translator.translate(lines.slice(i, i + LINES), Number(beamSize));
    process.stdout.write(found.map((line) => `${line}\n`).join(""));
  }
  const words = lines.join(" ").split(/\s+/).filter((word) => word !== "").length;
  console.error(`${lines.length} lines, ${words} words in ${seconds().toFixed(2)} s: ` +
    `${(words / seconds()).toFixed(0)} words per second`);
}

main(process.argv.slice(2)).catch((error) => {
  console.error(`measure.js: ${error.message}`);
  process.exitCode = 1;
});
