// @ts-check
// A key presses the button that names the key as its shortcut.
document.addEventListener("keydown", ({ key, ctrlKey, altKey, metaKey, repeat }) => {
  const control = document.querySelector(`[aria-keyshortcuts="${CSS.escape(key.toLowerCase())}"]`);
  if (control instanceof HTMLElement && !(ctrlKey || altKey || metaKey || repeat)) control.click();
});
