// Small line charts in SVG: axes, lines with gaps, dots, a dashed limit, and a reading under the pointer.

const SVG = "http://www.w3.org/2000/svg";
const LEFT = 44, BOTTOM = 20, TOP = 6, RIGHT = 6;

export function make(name, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/** 12345678 → "12.3M", as `top` writes it. */
export function short(number) {
  for (const unit of ["", "k", "M", "G", "T"]) {
    if (Math.abs(number) < 999.5) return `${+number.toPrecision(3)}${unit}`;
    number /= 1000;
  }
  return `${+number.toPrecision(3)}P`;
}

/** 3661 → "1:01:01". */
export function duration(seconds) {
  const whole = Math.floor(seconds), two = (n) => String(n).padStart(2, "0");
  return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
}

/** A few round numbers that span low … high, far enough apart that `short` tells them apart. */
export function ticks(low, high, count = 4) {
  const least = Math.max(Math.abs(low), Math.abs(high)) / 100;
  const rough = Math.max((high - low) / count, least) || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const found = [];
  for (let n = Math.floor(low / step); n * step < high + step * 0.999; n++) found.push(n * step);
  return found;
}

/**
 * One chart in `figure`. Each of `lines` has `read` (point → number or null) and a class of the style
 * sheet; `dots` are [time, value].
 */
export class Chart {
  constructor(figure, lines, { fromZero = false, format = short } = {}) {
    Object.assign(this, { figure, lines, fromZero, format, points: [], dots: [] });
    this.svg = make("svg", { role: "img" });
    figure.append(this.svg);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => { this.at = null; this.draw(); });
    new ResizeObserver(() => this.draw()).observe(figure);
  }

  show(points, dots = []) {
    this.points = points;
    this.dots = dots;
    this.draw();
  }

  point(event) {
    this.at = event.clientX - this.svg.getBoundingClientRect().left;
    this.draw();
  }

  get hasData() {
    return this.dots.length > 0 || this.points.some((p) => this.lines.some((line) => line.read(p) != null));
  }

  draw() {
    const width = this.svg.clientWidth, height = this.svg.clientHeight;
    if (!width || !this.hasData) { this.svg.replaceChildren(); return; }
    const times = [...this.points.map((p) => p.time_s), ...this.dots.map((dot) => dot[0])];
    const first = Math.min(...times), last = Math.max(...times, first + 1);
    const values = this.lines.flatMap((line) => this.points.map(line.read)).filter((v) => v != null);
    values.push(...this.dots.map((dot) => dot[1]), ...(this.fromZero ? [0] : []));
    let [low, high] = [Math.min(...values), Math.max(...values)];
    if (low === high) [low, high] = low === 0 ? [0, 1] : [Math.min(0, low), Math.max(0, high) * 1.1];
    const marks = ticks(low, high);
    [low, high] = [marks[0], marks.at(-1)];
    const x = (t) => LEFT + (t - first) / (last - first) * (width - LEFT - RIGHT);
    const y = (v) => height - BOTTOM - (v - low) / (high - low) * (height - BOTTOM - TOP);
    const parts = this.axes(marks, first, last, x, y, width, height);
    const circles = this.dots.map(([t, v]) => make("circle", { cx: x(t).toFixed(1), cy: y(v).toFixed(1), r: 2 }));
    parts.push(make("g", { class: "dots" }, ...circles));
    for (const line of this.lines) parts.push(...this.line(line, x, y, y(low)));
    if (this.at != null) parts.push(...this.reading(x, y, width, height));
    this.svg.replaceChildren(...parts);
  }

  axes(marks, first, last, x, y, width, height) {
    const parts = marks.flatMap((v) => [
      make("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(v), y2: y(v) }),
      make("text", { x: LEFT - 8, y: y(v) + 4, "text-anchor": "end" }, this.format(v)),
    ]);
    return [...parts,
      make("text", { x: LEFT, y: height - 3 }, duration(first)),
      make("text", { x: width - RIGHT, y: height - 3, "text-anchor": "end" }, duration(last))];
  }

  line({ read, style, area }, x, y, ground) {
    const runs = [[]];
    for (const point of this.points) {
      const value = read(point);
      if (value == null) runs.push([]); else runs.at(-1).push(`${x(point.time_s).toFixed(1)},${y(value).toFixed(1)}`);
    }
    return runs.filter((run) => run.length).flatMap((run) => {
      const [from, to] = [run[0].split(",")[0], run.at(-1).split(",")[0]];
      const drawn = [make("polyline", { class: style, points: run.length > 1 ? run.join(" ") : `${run[0]} ${+from + 1},${run[0].split(",")[1]}` })];
      if (area) drawn.unshift(make("polygon", { class: "area", points: `${from},${ground} ${run.join(" ")} ${to},${ground}` }));
      return drawn;
    });
  }

  reading(x, y, width, height) {
    const near = this.points.reduce((a, b) => Math.abs(x(b.time_s) - this.at) < Math.abs(x(a.time_s) - this.at) ? b : a, this.points[0]);
    if (!near) return [];
    const at = x(near.time_s), said = this.lines.map((l) => l.read(near)).filter((v) => v != null).map(this.format);
    const anchor = at > width / 2 ? "end" : "start", shift = anchor === "end" ? -6 : 6;
    return [
      make("line", { class: "cursor", x1: at, x2: at, y1: TOP, y2: height - BOTTOM }),
      make("text", { class: "reading", x: at + shift, y: TOP + 10, "text-anchor": anchor }, `${said.join(" / ")}  at ${duration(near.time_s)}`),
    ];
  }
}
