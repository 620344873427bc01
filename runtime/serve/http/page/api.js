// The API as openapi.json describes it.

import { get } from "./client.js";

const main = document.getElementById("routes");

function element(name, content, className) {
  const made = document.createElement(name);
  made.append(...[content].flat());
  if (className !== undefined) {
    made.className = className;
  }
  return made;
}

/** Text with the code in it, which has back quotes around it. */
function prose(text) {
  return text.split("`").map((part, number) => (number % 2 ? element("code", part) : part));
}

function schemaOf(description, schema) {
  const name = schema.$ref?.split("/").at(-1);
  return name === undefined ? schema : (description.components.schemas[name] ?? {});
}

function typeOf(schema) {
  const choices = schema.anyOf?.filter((one) => one.type !== "null").map(typeOf);
  const type = schema.enum?.map((one) => JSON.stringify(one)).join(" or ") ?? schema.type ?? "";
  return choices?.join(" or ") ?? (schema.type === "array" ? `array of ${typeOf(schema.items)}` : type);
}

function fieldsOf(schema) {
  const rows = Object.entries(schema.properties ?? {}).map(([name, field]) => {
    const required = schema.required?.includes(name) ? "required" : JSON.stringify(field.default) ?? "";
    return element("tr", [
      element("td", element("code", name)),
      element("td", typeOf(field)),
      element("td", required === "null" ? "" : required),
      element("td", prose(field.description ?? "")),
    ]);
  });
  const head = ["field", "type", "default", "meaning"].map((one) => element("th", one));
  const table = element("table", [element("thead", element("tr", head)), element("tbody", rows)]);
  return element("div", table, "fields");
}

function routeOf(description, path, method, route) {
  const content = route.requestBody?.content["application/json"]?.schema;
  const errors = Object.keys(route.responses).filter((status) => status >= 400);
  const parts = [
    element("h2", [element("span", method.toUpperCase(), "method"), element("code", path)]),
    ...(route.description ?? "").split("\n\n").map((text) => element("p", prose(text))),
  ];
  if (content !== undefined) {
    parts.push(fieldsOf(schemaOf(description, content)));
  }
  if (errors.length > 0) {
    parts.push(element("p", `Errors: ${errors.join(", ")}`, "note"));
  }
  return element("section", parts, "card route");
}

try {
  const description = await get("openapi.json");
  for (const [path, methods] of Object.entries(description.paths)) {
    for (const [method, route] of Object.entries(methods)) {
      main.append(routeOf(description, path, method, route));
    }
  }
} catch (error) {
  const message = document.getElementById("message");
  message.textContent = error.message;
  message.hidden = false;
}
