// The bridge of the notebook widget: it forwards requests of the page in the frame to Python, and answers back.
function render({ model, el }) {
  const view = Math.random().toString(36).slice(2); // randomUUID wants https
  const frame = document.createElement("iframe");
  frame.setAttribute("sandbox", "allow-scripts allow-downloads");
  frame.title = "attendo look";
  frame.height = String(model.get("height"));
  Object.assign(frame.style, { width: "100%", border: "0" });
  frame.srcdoc = model.get("page");
  const ask = ({ source, data }) => {
    if (source !== frame.contentWindow || data?.attendo !== 1) return;
    model.send({ attendo: 1, view, id: data.id, name: data.name, body: data.body });
  };
  const tell = (told, buffers) => {
    if (told?.attendo !== 1 || told.view !== view) return;
    const { view: mine, ...answer } = told;
    const bytes = buffers?.[0]; // a DataView, or another view of bytes
    if (bytes) answer.buffer = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
    frame.contentWindow?.postMessage(answer, "*");
  };
  window.addEventListener("message", ask);
  model.on("msg:custom", tell);
  el.append(frame);
  return () => {
    window.removeEventListener("message", ask);
    model.off("msg:custom", tell);
  };
}
export default { render };
