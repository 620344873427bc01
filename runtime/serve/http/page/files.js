// Files: chosen or dropped on the page, translated by the server, and downloaded.

import { ServerError, translateFile } from "./client.js";

const $ = (id) => document.getElementById(id);
let running = null; // AbortController of the translation

/**
 * Offer the translation of files.
 *
 * @param {string[]} suffixes Suffixes of the formats that the server translates.
 * @param {() => ?object} fields Returns the fields of a request; null if it cannot be sent now.
 * @param {(error: ServerError) => void} fail Called with the reason of a failure.
 */
export function offerFiles(suffixes, fields, fail) {
  const card = document.querySelector(".card");
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  const accept = async (files) => {
    const given = files.length > 0 ? fields() : null;
    if (given !== null) {
      await translate(files[0], given, fail);
    }
  };
  $("file-input").accept = suffixes.join(",");
  $("file-choose").hidden = false;
  $("file-choose").addEventListener("click", () => $("file-input").click());
  $("file-input").addEventListener("change", () => {
    accept([...$("file-input").files]);
    $("file-input").value = ""; // the same file may be chosen again
  });
  $("file-cancel").addEventListener("click", () => {
    running?.abort();
    show("", "The translation of the file has been cancelled.");
    $("file-choose").focus();
  });
  for (const kind of ["dragenter", "dragover"]) {
    card.addEventListener(kind, (event) => {
      if (hasFiles(event)) {
        event.preventDefault();
        card.classList.add("dropping");
      }
    });
  }
  for (const kind of ["dragleave", "drop"]) {
    card.addEventListener(kind, (event) => {
      card.classList.remove("dropping");
      if (kind === "drop" && hasFiles(event)) {
        event.preventDefault();
        accept([...event.dataTransfer.files]);
      }
    });
  }
}

async function translate(file, fields, fail) {
  running?.abort();
  const here = new AbortController();
  running = here;
  show(file.name, `Translating ${file.name} …`);
  try {
    const url = await translateFile(file, fields, here.signal);
    if (!here.signal.aborted) {
      show(file.name, `${file.name} has been translated.`, url);
    }
  } catch (error) {
    if (here.signal.aborted) {
      return;
    }
    show("", "");
    if (!(error instanceof ServerError)) {
      throw error;
    }
    fail(error);
  }
}

/** Show a file that is being translated, or that can be downloaded. */
function show(name, status, url = "") {
  const hadFocus = document.activeElement === $("file-cancel");
  $("file").hidden = name === "";
  $("file-name").textContent = name;
  $("file-progress").hidden = url !== "";
  $("file-cancel").hidden = url !== "";
  $("file-state").textContent = url === "" ? "Translating …" : "Translated";
  $("file-link").hidden = url === "";
  $("file-link").href = url;
  $("status").textContent = status;
  if (hadFocus && url !== "") {
    $("file-link").focus();
  }
}
