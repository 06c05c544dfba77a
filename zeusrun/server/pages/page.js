/* Keeps the page up to date: only what has changed is replaced. */
(function () {
  const LEAST_MS = 1000, PENDING_MS = 1200, WATCH_MS = 2000;
  let loading = false, last = 0, timer = 0;

  const key = (node) => (node.nodeType === 1 && (node.id || node.dataset.key)) || "";
  const kept = (node) => node.nodeType === 1 && "keep" in node.dataset;

  function update(old, fresh) {
    if (old.isEqualNode(fresh) || kept(old)) return;
    if (old.nodeName !== fresh.nodeName) { old.replaceWith(fresh); return; }
    if (old.nodeType !== 1) { old.nodeValue = fresh.nodeValue; return; }
    if ("unknown" in fresh.dataset && !("unknown" in old.dataset)) return; /* not yet computed again */
    for (const { name, value } of fresh.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    for (const { name } of [...old.attributes]) {
      const own = old.nodeName === "DETAILS" && name === "open"; /* the reader opened it */
      if (!own && !fresh.hasAttribute(name)) old.removeAttribute(name);
    }
    const keys = new Set([...fresh.childNodes].map(key));
    for (const node of [...old.childNodes]) if (key(node) && !keys.has(key(node))) node.remove();
    const known = new Map([...old.childNodes].filter(key).map((node) => [key(node), node]));
    let at = old.firstChild;
    for (const node of [...fresh.childNodes]) {
      const same = key(node) ? known.get(key(node)) : at && !key(at) && at.nodeName === node.nodeName ? at : null;
      if (!same) { old.insertBefore(node, at); continue; }
      if (same === at) at = at.nextSibling; else old.insertBefore(same, at);
      update(same, node);
    }
    while (at) { const next = at.nextSibling; if (!kept(at)) at.remove(); at = next; }
  }

  /* Times come in UTC; the length of a text says which part of one it shows. */
  const PARTS = { 16: [0, 16], 10: [0, 10], 8: [11, 19], 5: [11, 16] };

  function localize(root) {
    for (const time of root.querySelectorAll("time")) {
      const at = new Date(time.dateTime), part = PARTS[time.textContent.length];
      if (!part || isNaN(at)) continue;
      const own = new Date(at - 60000 * at.getTimezoneOffset()).toISOString();
      time.textContent = own.slice(...part).replace("T", " ");
      time.title = time.dateTime;
    }
    const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
    root.querySelector("#zone").textContent = `Times are in the time zone of this browser, ${zone}.`;
  }

  function show(text, title) {
    const state = document.getElementById("state");
    if (state.textContent !== text) state.textContent = text;
    state.title = title;
  }

  /* Whether a sign-in has ended. A script may not follow a redirect to another site; a reload does. */
  const isAway = (answer) => answer.type === "opaqueredirect" || answer.status === 401 || answer.status === 403;

  async function load() {
    if (loading) return;
    loading = true;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "manual" });
      if (isAway(answer)) { location.reload(); return; }
      if (answer.ok) {
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
        document.title = fresh.title;
        localize(fresh.body);
        update(document.body, fresh.body);
        wait();
      }
    } catch (gone) { /* watch shows it */ }
    last = Date.now();
    loading = false;
  }

  function soon(least = LEAST_MS) {
    clearTimeout(timer);
    timer = setTimeout(load, Math.max(0, last + least - Date.now()));
  }

  function wait() { if ("pending" in document.body.dataset) soon(PENDING_MS); }

  async function watch() {
    const { watch: address, version } = document.body.dataset;
    if (!address || document.hidden) return;
    try {
      const answer = await fetch(address, { redirect: "manual" });
      if (isAway(answer)) { load(); return; }
      if (answer.ok) {
        show("Live", "This page updates by itself.");
        if ((await answer.text()) !== version) soon();
        return;
      }
    } catch (gone) { /* as if it had refused */ }
    show("Reconnecting", "The server does not respond. This page shows what it last sent.");
  }

  document.addEventListener("DOMContentLoaded", function () {
    localize(document.body);
    watch();
    wait();
    setInterval(watch, WATCH_MS);
    document.addEventListener("visibilitychange", watch);
  });
})();
