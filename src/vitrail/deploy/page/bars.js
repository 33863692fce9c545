// Classes as bars. Names are text, whatever is in them.

export const percent = (value) => `${(100 * value).toFixed(1)} %`;

export function listBars(list, top) {
  list.replaceChildren(...top.map(({ label, probability }) => {
    const row = document.createElement("li");
    const [name, value, track, fill] = ["span", "span", "div", "div"].map((tag) => document.createElement(tag));
    name.textContent = label;
    value.textContent = percent(probability);
    track.className = "track";
    fill.className = "fill";
    fill.style.width = `${100 * probability}%`;
    track.append(fill);
    row.append(name, value, track);
    return row;
  }));
}
