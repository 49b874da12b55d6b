// Browsers start no worker for a page that was opened from a file. The search runs in a frame then, with the same
// messages. On a page from a server this file does nothing.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.inside = new Promise((ready, failed) => {
        const script = frame.contentDocument.createElement("script");
        script.src = url;
        script.onload = () => ready(inside);
        script.onerror = () => failed(new Error(`cannot load ${url}`));
        frame.contentDocument.body.append(script);
      });
    }
    postMessage(data) {
      this.inside.then((inside) => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }
  };
}
