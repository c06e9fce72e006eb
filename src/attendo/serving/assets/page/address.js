// The settings of the page, mirrored in the address after the "#", which browsers never send to a server.
import { afterPause } from "./dom.js";

const SETTINGS = {
  model: "", // default: the first
  text: "",
  beam: "", // default: the model's own
  segment: "", // default: the server's own
  max_tokens: "60",
  temperature: "0.8",
  top_p: "0.95",
  seed: "",
  stop: "",
  live: "yes", // whether a completion starts automatically
  language: "", // default: the browser's
  theme: "auto",
};
const LONGEST_IN_ADDRESS = 500; // characters; the address does not contain longer texts

function settingsIn(hash) {
  const found = { ...SETTINGS };
  for (const [name, value] of new URLSearchParams(hash.replace(/^#/, "")))
    if (Object.hasOwn(SETTINGS, name)) found[name] = value;
  if (!["", "en", "ja"].includes(found.language)) found.language = "";
  if (!["auto", "light", "dark"].includes(found.theme)) found.theme = "auto";
  return found;
}

function addressOf(values) {
  const out = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    const fits = name !== "text" || value.length <= LONGEST_IN_ADDRESS;
    if (value !== SETTINGS[name] && fits) out.set(name, value);
  }
  return out.toString();
}

// settings.get(name), settings.set({ name: text }); settings.onOther(fn): another address was opened
export function makeSettings() {
  let values = settingsIn(location.hash);
  let other = () => {};
  const write = afterPause(() => {
    const address = addressOf(values);
    if (`#${address}` === location.hash) return;
    try {
      history.replaceState(null, "", address ? `#${address}` : location.pathname + location.search);
    } catch {
      // a browser may reject an address that changes very often; the page continues without it
    }
  }, 300);
  window.addEventListener("hashchange", () => {
    values = { ...settingsIn(location.hash), language: values.language, theme: values.theme };
    other();
  });
  return {
    get: (name) => values[name],
    set: (some) => {
      values = { ...values, ...some };
      write();
    },
    onOther: (fn) => (other = fn),
  };
}

// A setting as a number, or undefined if it is not a number
export function numberOf(text) {
  const number = text.trim() === "" ? NaN : Number(text);
  return Number.isFinite(number) ? number : undefined;
}
