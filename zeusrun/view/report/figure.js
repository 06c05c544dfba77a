/* Shows the value of a figure that is nearest to the pointer, or chosen with the arrow keys. */
(function () {
  const HINT = "Point at the figure, or choose it with Tab and press the arrow keys, to see values.";
  const NEAR = 30;
  const chosen = new WeakMap();

  function points(svg) {
    const named = svg.querySelector("metadata");
    return named ? JSON.parse(named.textContent) : [];
  }

  function show(svg, number) {
    const point = points(svg)[number];
    let ring = svg.querySelector(".ring");
    if (!ring) {
      ring = document.createElementNS(svg.namespaceURI, "circle");
      ring.setAttribute("r", 6);
      ring.classList.add("ring");
      ring.dataset.keep = "yes";
      svg.append(ring);
    }
    ring.setAttribute("cx", point[0]);
    ring.setAttribute("cy", point[1]);
    svg.closest("figure").querySelector("output").textContent = point[2];
    chosen.set(svg, number);
  }

  document.addEventListener("pointermove", function (event) {
    const svg = event.target.closest && event.target.closest("figure svg");
    if (!svg) return;
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    let best = -1, least = NEAR;
    points(svg).forEach(function ([x, y], number) {
      const far = Math.hypot(x - at.x, y - at.y);
      if (far < least) { least = far; best = number; }
    });
    if (best >= 0) show(svg, best);
  });

  document.addEventListener("keydown", function (event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const svg = step && event.target.matches("figure .scroll") && event.target.querySelector("svg");
    const most = svg ? points(svg).length - 1 : -1;
    if (most < 0) return;
    event.preventDefault();
    const now = chosen.has(svg) ? chosen.get(svg) + step : step > 0 ? 0 : most;
    show(svg, Math.min(most, Math.max(0, now)));
  });

  document.addEventListener("DOMContentLoaded", function () {
    const first = document.querySelector("figure output");
    if (first) first.textContent = HINT;
  });
})();
