"use strict";
(() => {
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const remembered = { // pages opened from a disk may have no storage
    get() { try { return localStorage.getItem("transship-theme"); } catch { return null; } },
    set(value) { try { localStorage.setItem("transship-theme", value); } catch { /* not remembered, then */ } },
  };
  let printing = false;
  const theme = () => (printing ? "light" : remembered.chosen || (system.matches ? "dark" : "light"));
  remembered.chosen = ["light", "dark"].includes(remembered.get()) ? remembered.get() : null;
  const applyTheme = () => { root.dataset.theme = theme(); };
  applyTheme(); // before the first paint, so that nothing flashes

  const css = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();
  const channels = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  const faded = (colour, alpha) => `rgba(${channels(colour).join()},${alpha})`;
  const COLOUR_KEYS = new Set(["color", "fillcolor", "colorscale", "bordercolor", "bgcolor", "outlinecolor"]);
  function palette() {
    const found = new Map();
    for (const name of ["text", "muted", "accent", "good", "warning", "bad", "line", "surface"]) found.set("@" + name, css(name));
    for (let place = 1; place <= 8; place += 1) {
      found.set(`@series-${place}`, css(`series-${place}`));
      found.set(`@band-${place}`, faded(css(`series-${place}`), 0.18));
    }
    found.set("@sequential", [[0, css("low")], [0.5, css("middle")], [1, css("high")]]);
    return found;
  }
  // tokens count only where a colour belongs: a model may well be called "@accent"
  function coloured(value, colours, key) {
    if (Array.isArray(value)) return value.map((part) => coloured(part, colours, key));
    if (value !== null && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, coloured(part, colours, name)]));
    }
    return typeof value === "string" && COLOUR_KEYS.has(key) && colours.has(value) ? colours.get(value) : value;
  }
  function template(colours, narrow) {
    const font = { family: css("sans"), size: narrow ? 12 : 13, color: css("text") };
    const axis = {
      automargin: true, gridcolor: css("grid"), linecolor: css("line"), zerolinecolor: css("line"), zerolinewidth: 1,
      tickfont: { color: css("muted"), size: narrow ? 11 : 12 }, title: { standoff: 12, font: { size: narrow ? 12 : 13 } }, ticks: "", ticklabelstandoff: 4,
      autotickangles: [0, -40, -90], ticklabeloverflow: "allow",
    };
    const colorbar = { tickfont: { color: css("muted"), size: 11 }, title: { font: { size: 13 } }, ticks: "outside", ticklen: 3,
      tickcolor: "rgba(0,0,0,0)", outlinewidth: 0, thickness: 12 };
    return { data: { heatmap: [{ colorbar }] }, layout: {
      font, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      colorway: Array.from({ length: 8 }, (_, place) => colours.get(`@series-${place + 1}`)),
      xaxis: axis, yaxis: { ...axis, autotickangles: undefined },
      margin: { l: narrow ? 48 : 60, r: narrow ? 12 : 20, t: 16, b: 58 },
      legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", font: { size: narrow ? 11.5 : 13 } },
      hoverlabel: { bgcolor: css("surface"), bordercolor: css("line"), font: { color: css("text"), family: css("sans") } },
      modebar: { color: css("muted"), activecolor: css("accent"), bgcolor: "rgba(0,0,0,0)" },
    } };
  }
  const luminance = (rgb) => rgb.map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
  function shade(scale, share) {
    const after = scale.findIndex(([stop]) => stop >= share);
    if (after <= 0) return channels(scale[after === 0 ? 0 : scale.length - 1][1]);
    const [[low, from], [high, to]] = [scale[after - 1], scale[after]];
    const part = (share - low) / (high - low);
    return channels(from).map((start, place) => start + (channels(to)[place] - start) * part);
  }
  // the numbers in a heat map's cells, each black or white, whichever stands out more from its cell
  function cellTexts(trace) {
    const [x, y, text, color] = [[], [], [], []];
    trace.z.forEach((row, down) => row.forEach((value, across) => {
      if (value === null) return;
      const share = Math.min(1, Math.max(0, (value - trace.zmin) / (trace.zmax - trace.zmin || 1)));
      x.push(across); y.push(down); text.push(trace.text[down][across]);
      color.push(luminance(shade(trace.colorscale, share)) > 0.179 ? "#000000" : "#ffffff");
    }));
    delete trace.text;
    return { type: "scatter", mode: "text", x, y, text, textfont: { color, size: 12 }, hoverinfo: "skip", showlegend: false };
  }
  // a phone has no room for forty tick labels side by side, nor for a long axis title on one line
  function fitted(axis, room) {
    if (!axis) return axis;
    const made = { ...axis };
    const step = Math.ceil((axis.tickvals || []).length / Math.max(1, room / 16));
    if (step > 1) for (const key of ["tickvals", "ticktext"]) if (made[key]) made[key] = made[key].filter((_, place) => place % step === 0);
    const most = Math.max(14, Math.floor(room / 7));
    const text = (axis.title && axis.title.text) || "";
    if (text.length > most) {
      const lines = [""];
      for (const word of text.split(" ")) {
        if ((lines.at(-1) + " " + word).trim().length > most && lines.at(-1)) lines.push(word);
        else lines[lines.length - 1] = (lines.at(-1) + " " + word).trim();
      }
      made.title = { ...axis.title, text: lines.join("<br>") };
    }
    return made;
  }
  function draw(plot) {
    const spec = JSON.parse(plot.parentElement.querySelector("script").textContent);
    const colours = palette();
    const narrow = plot.clientWidth < 400;
    const { data, layout } = coloured(spec, colours, "");
    for (const trace of data.filter(({ type }) => type === "heatmap")) {
      // numbers that would run into each other say nothing: the colours and the folded table must do
      if ((plot.clientWidth - (narrow ? 110 : 190)) / trace.z[0].length < 30) delete trace.text;
      // a colour bar at the side would cost a phone a fifth of its width
      if (narrow && trace.text) trace.showscale = false;
      else if (narrow) trace.colorbar = { ...trace.colorbar, orientation: "h", y: 1.02, yanchor: "bottom", thickness: 10 };
    }
    data.push(...data.filter((trace) => trace.type === "heatmap" && trace.text).map(cellTexts));
    const style = getComputedStyle(plot);
    if (layout.yaxis && layout.yaxis.scaleanchor) { // a picture keeps its shape: no empty bands above and below it
      const [{ z }] = data;
      plot.style.height = `${Math.min(plot.clientHeight, Math.round(((plot.clientWidth - (narrow ? 80 : 180)) * z.length) / z[0].length) + (narrow ? 160 : 110))}px`;
    }
    const height = plot.clientHeight - parseFloat(style.paddingTop) - parseFloat(style.paddingBottom);
    const config = { responsive: true, displaylogo: false, displayModeBar: narrow ? false : undefined, scrollZoom: false,
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"], toImageButtonOptions: { scale: 2, filename: "transship" } };
    if (narrow) layout.xaxis = fitted(layout.xaxis, (plot.clientWidth - 60) * (data.some(({ orientation }) => orientation === "h") ? 0.6 : 1));
    const whole = { ...layout, height, autosize: true, template: template(colours, narrow), dragmode: narrow ? false : "zoom" };
    return window.Plotly.react(plot, data, whole, config);
  }
  const plots = () => document.querySelectorAll(".plot");
  const redraw = () => { if (window.Plotly) plots().forEach(draw); };
  async function unpack(packed) {
    const signs = atob(packed);
    const bytes = new Uint8Array(signs.length);
    for (let place = 0; place < signs.length; place += 1) bytes[place] = signs.charCodeAt(place); // Uint8Array.from takes ten times as long
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }
  async function drawAll() {
    const packed = document.getElementById("plotly");
    if (!packed) return;
    try {
      const script = document.createElement("script");
      script.textContent = await unpack(packed.textContent.trim());
      document.head.append(script);
      for (const plot of plots()) { plot.replaceChildren(); await draw(plot); }
      root.dataset.figures = "drawn";
    } catch (error) {
      document.querySelectorAll(".waiting").forEach((note) => {
        note.textContent = "This browser cannot draw the figure; its numbers are in the table below.";
      });
      if (typeof DecompressionStream !== "undefined") throw error;
    }
  }

  function compare(left, right) {
    const [a, b] = [left, right].map((cell) => (cell.dataset.value === undefined ? null : Number(cell.dataset.value)));
    if (a !== null && b !== null) return a - b;
    if (a !== null || b !== null) return a === null ? 1 : -1;
    return left.textContent.localeCompare(right.textContent, undefined, { numeric: true });
  }
  function sortable(table) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, place) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const body = table.tBodies[0];
        const rows = [...body.rows].sort((a, b) => compare(a.cells[place], b.cells[place]) * (down ? -1 : 1));
        body.append(...rows);
      });
    });
  }
  function followContents() {
    const links = new Map([...document.querySelectorAll(".contents a")].map((link) => [link.hash.slice(1), link]));
    if (!links.size) return;
    const folded = document.querySelector(".contents details");
    if (window.matchMedia("(max-width: 68rem)").matches) folded.open = false;
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        links.forEach((link) => link.removeAttribute("aria-current"));
        links.get(entry.target.id).setAttribute("aria-current", "true");
      }
    }, { rootMargin: "0px 0px -70% 0px" });
    links.forEach((_, id) => seen.observe(document.getElementById(id)));
  }
  function themeButton() {
    const button = document.getElementById("theme");
    const show = () => {
      const other = theme() === "dark" ? "light" : "dark";
      document.getElementById("theme-name").textContent = other === "dark" ? "Dark" : "Light";
      button.setAttribute("aria-label", `Change to the ${other} theme`);
    };
    const change = () => { applyTheme(); show(); redraw(); };
    button.hidden = false;
    show();
    button.addEventListener("click", () => {
      remembered.chosen = theme() === "dark" ? "light" : "dark";
      remembered.set(remembered.chosen);
      change();
    });
    system.addEventListener("change", change);
    window.addEventListener("beforeprint", () => { printing = true; change(); });
    window.addEventListener("afterprint", () => { printing = false; change(); });
  }
  document.addEventListener("DOMContentLoaded", () => {
    themeButton();
    document.querySelectorAll("table.sortable").forEach(sortable);
    followContents();
    drawAll();
  });
})();
