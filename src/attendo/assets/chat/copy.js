// @ts-check
// The page of a conversation works without this script, which copies replies and keeps a reply that is stopped.
import { copyText } from "../shared/files.js";

document.addEventListener("click", ({ target }) => {
  const { name, form, classList, previousElementSibling } = /** @type {HTMLButtonElement} */ (target);
  if (classList.contains("copy")) copyText(previousElementSibling?.textContent ?? "");
  if (name === "stop" && form) form["reply"].value = form.nextElementSibling?.textContent;
});
