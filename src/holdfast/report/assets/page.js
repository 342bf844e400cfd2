"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const box = document.getElementById("curves");
  if (!box) return;
  const log = document.getElementById("log");
  const smooth = document.getElementById("smooth");
  const plots = [];

  // the mean of the values before, weighed by an exponential; gaps stay gaps
  const smoothed = (values, weight) => {
    if (!weight) return values;
    let mean = null;
    return values.map((value) => {
      if (value === null) return null;
      mean = mean === null ? value : weight * mean + (1 - weight) * value;
      return mean;
    });
  };

  const marks = (u) => {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.strokeStyle = color("--soft");
    ctx.setLineDash([3, 3]);
    for (const step of data.resumed) {
      const x = u.valToPos(step, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  };

  const draw = (curve, at) => {
    const steps = [...new Set(curve.lines.flatMap((line) => line.steps))].sort((a, b) => a - b);
    const place = new Map(steps.map((step, index) => [step, index]));
    const columns = curve.lines.map((line) => {
      const values = new Array(steps.length).fill(undefined);
      line.steps.forEach((step, index) => { values[place.get(step)] = line.values[index]; });
      return smoothed(values.map((v) => (v === undefined ? null : v)), Number(smooth.value));
    });
    const plot = box.children[at].querySelector(".plot");
    plot.textContent = "";
    const axis = { stroke: color("--soft"), grid: { stroke: color("--line"), width: 1 },
      ticks: { stroke: color("--line") } };
    const options = {
      width: plot.clientWidth, height: 230,
      scales: { x: { time: false }, y: { distr: log.checked && curve.positive ? 3 : 1 } },
      axes: [axis, { ...axis, size: 64 }],
      series: [
        { label: "step" },
        ...curve.lines.map((line) => ({
          label: line.label, spanGaps: true,
          stroke: line.counts ? color("--training") : color("--redone"),
          width: line.counts ? 1.6 : 1, alpha: line.counts ? 1 : 0.45,
          dash: line.counts ? undefined : [4, 3],
          points: { show: steps.length < 60 },
        })),
      ],
      hooks: { draw: [marks] },
    };
    plots[at] = new uPlot(options, [steps, ...columns], plot);
  };

  const all = () => {
    plots.forEach((plot) => plot.destroy());
    data.curves.forEach(draw);
    document.body.dataset.drawn = data.curves.length;
  };
  log.addEventListener("change", all);
  smooth.addEventListener("input", all);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
  // a scrollbar that appears makes the box narrower, too
  let width = box.clientWidth;
  all();
  new ResizeObserver(() => {
    if (box.clientWidth === width) return;
    width = box.clientWidth;
    requestAnimationFrame(all);
  }).observe(box);
})();
