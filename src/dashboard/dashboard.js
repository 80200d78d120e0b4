// What the pages of the dashboard have besides: live updates, and forms of schemas in step with their JSON. Every page
// works without.
"use strict";

// Parts that follow what happens: the page is fetched again, and they are replaced where they differ.
const live = () => document.querySelectorAll("[data-live]");
let waiting = 0;

async function refresh() {
  waiting = 0;
  if (document.hidden || !live().length) return;
  const response = await fetch(location.href, { headers: { accept: "text/html" } }).catch(() => null);
  if (!response || !response.ok || response.redirected) return;
  const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
  for (const part of live()) {
    const next = fresh.getElementById(part.id);
    const isUsed = part.contains(document.activeElement) && document.activeElement !== document.body;
    if (next && !isUsed && next.innerHTML !== part.innerHTML) part.replaceWith(next);
  }
}

function soon() {
  if (!waiting) waiting = setTimeout(refresh, 400);
}

if (live().length) {
  const events = document.body.dataset.events;
  if (events) {
    const source = new EventSource(events);
    for (const name of ["server_state", "catalog_changed", "config_changed", "record"]) {
      source.addEventListener(name, soon);
    }
  }
  setInterval(soon, 10000);
  document.addEventListener("visibilitychange", soon);
}

// Lines of a stream, of which the last are kept.
const LINES_MAX = 500;
for (const log of document.querySelectorAll("pre[data-stream]")) {
  const lines = [];
  new EventSource(log.dataset.stream).addEventListener(log.dataset.event, (event) => {
    lines.push(JSON.parse(event.data));
    lines.splice(0, lines.length - LINES_MAX);
    const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    log.textContent = lines.join("\n");
    if (isAtEnd) log.scrollTop = log.scrollHeight;
  });
}

// A form of a schema writes its JSON, and the other way round.
const form = document.querySelector("form[data-arguments]");
if (form) {
  const json = form.querySelector("[name=arguments]");
  const fields = [...form.querySelectorAll("[data-argument]")];
  const read = (field) => {
    if (field.value === "") return undefined;
    if (field.dataset.kind === "string") return field.value;
    try { return JSON.parse(field.value); } catch { return field.value; }
  };
  const write = () => {
    const values = parsed() || {};
    for (const field of fields) {
      const value = read(field);
      if (value === undefined) delete values[field.dataset.argument];
      else values[field.dataset.argument] = value;
    }
    json.value = JSON.stringify(values, null, 2);
  };
  const parsed = () => {
    try { return JSON.parse(json.value || "{}"); } catch { return null; }
  };
  const show = () => {
    const values = parsed();
    json.setAttribute("aria-invalid", values === null ? "true" : "false");
    if (!values) return;
    for (const field of fields) {
      const value = values[field.dataset.argument];
      if (value === undefined) field.value = "";
      else field.value = typeof value === "string" ? value : JSON.stringify(value);
    }
  };
  for (const field of fields) field.addEventListener("input", write);
  json.addEventListener("input", show);
  if (json.value.trim() === "" || json.value.trim() === "{}") write(); else show();
}

// A choice that shows another page at once.
for (const choice of document.querySelectorAll("select[data-submit]")) {
  choice.addEventListener("change", () => choice.form.requestSubmit());
}

// What cannot be undone is asked for once more.
document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-confirm]");
  if (button && !confirm(button.dataset.confirm)) event.preventDefault();
});

for (const button of document.querySelectorAll("button[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const text = document.getElementById(button.dataset.copy).textContent;
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  });
}
