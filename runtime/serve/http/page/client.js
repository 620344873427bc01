// The server's API. Paths are relative to the page, so that it works behind a path of a proxy.

const base = new URL(".", document.baseURI);

/** An answer other than success, in words for a reader. */
export class ServerError extends Error {
  /**
   * @param {number} status HTTP status; 0 if there was no answer.
   * @param {string} message Reason, in a sentence.
   * @param {number} retryAfter Seconds after which the request may succeed; 0 if it will not.
   */
  constructor(status, message, retryAfter = 0) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

const REASONS = new Map([
  [403, "The server wants a valid API key."],
  [408, "The text did not reach the server in time."],
  [413, "The text is too long for this server."],
  [429, "The server is busy."],
  [503, "The server is starting or shutting down."],
  [504, "The translation took too long."],
]);

async function failureOf(response) {
  let said = "";
  try {
    said = (await response.json()).error ?? "";
  } catch {
    // A proxy answered, without JSON.
  }
  const known = REASONS.get(response.status);
  let message = known ?? "The server could not translate this.";
  if (said && (known === undefined || response.status === 413)) {
    message = `${message} It says: ${said}`;
  }
  const mayRetry = response.status === 429 || response.status === 503;
  const seconds = Number(response.headers.get("Retry-After")) || 2;
  return new ServerError(response.status, message, mayRetry ? seconds : 0);
}

async function ask(path, options) {
  let response;
  try {
    response = await fetch(new URL(path, base), options);
  } catch (error) {
    if (error.name === "AbortError") {
      throw error;
    }
    throw new ServerError(0, "The server cannot be reached.", 3);
  }
  if (!response.ok) {
    throw await failureOf(response);
  }
  return response;
}

function post(path, fields, signal) {
  return ask(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(fields),
    signal,
  });
}

/** Return the JSON answer of a GET request. */
export async function get(path) {
  return (await ask(path, {})).json();
}

/** Return alternatives of the translation of a sentence after a prefix. */
export async function alternatives(fields, signal) {
  return (await post("alternatives", fields, signal)).json();
}

/** Translate a file; return the address of the translation. */
export async function translateFile(file, fields, signal) {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) {
    form.append(name, value);
  }
  form.append("file", file);
  const response = await ask("translate_file", { method: "POST", body: form, signal });
  // A proxy may have another address, or serve the page behind a path.
  const name = (await response.json()).translatedFileUrl.split("/").pop();
  return new URL(`download_file/${name}`, base).href;
}

/** Yield the events of a translation, as [name, data]; the last one is "done". */
export async function* translate(fields, signal) {
  const response = await post("translate/stream", fields, signal);
  let finished = false;
  try {
    for await (const [name, text] of eventsOf(response.body)) {
      const data = JSON.parse(text);
      if (name === "error") {
        throw new ServerError(data.status ?? 500, `The translation failed. ${data.error ?? ""}`);
      }
      yield [name, data];
      finished ||= name === "done";
    }
  } catch (error) {
    if (error instanceof ServerError || error.name === "AbortError") {
      throw error;
    }
  }
  if (!finished) {
    throw new ServerError(0, "The connection to the server was lost.", 3);
  }
}

/** Yield [name, data] of each server-sent event in a stream of bytes. */
export async function* eventsOf(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let name = "message";
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) {
        return;
      }
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines.map((one) => one.replace(/\r$/, ""))) {
        const [, field, content] = /^([^:]*):? ?(.*)$/s.exec(line);
        if (line === "") {
          if (data.length > 0) {
            yield [name, data.join("\n")];
          }
          name = "message";
          data = [];
        } else if (field === "event") {
          name = content;
        } else if (field === "data") {
          data.push(content);
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
