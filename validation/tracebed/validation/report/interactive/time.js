// Binary search in sorted columns, and times and numbers as text.

const [MINUTE, HOUR, DAY] = [60, 3600, 86400];
const TIME_STEPS = [
  ...[0.001, 0.01, 0.1, 1].flatMap((unit) => [unit, 2 * unit, 5 * unit]),
  ...[10, 30].flatMap((count) => [count, count * MINUTE]),
  ...[1, 2, 5].map((count) => count * MINUTE),
  ...[1, 2, 3, 6, 12].map((count) => count * HOUR),
  ...[1, 10, 100, 1000, 10000].flatMap((unit) => [unit * DAY, 2 * unit * DAY, 5 * unit * DAY]),
].sort((a, b) => a - b);
const SHORT = 600; // below this length of a run, s, an axis shows plain seconds

// Returns the first index whose value is at least `limit`; `values` ascend.
function lowerBound(values, limit) {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < limit) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Returns about five round numbers from `low` to `high`, at least `least` apart.
function roundTicks(low, high, least = 0) {
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(
    [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough),
    least,
  );
  const ticks = [];
  for (let n = Math.ceil(low / step); n * step <= high; n++) ticks.push(n * step);
  return ticks;
}

// Returns 0 and the powers of ten from `low` to `high` on an axis that is linear up to `linear` and logarithmic beyond;
// round numbers if these are few.
function decadeTicks(low, high, linear) {
  const ticks = [0];
  for (let power = linear; power <= Math.max(high, -low); power *= 10) ticks.push(-power, power);
  const inside = ticks.filter((tick) => tick >= low && tick <= high).sort((a, b) => a - b);
  return inside.length > 2 ? inside : roundTicks(low, high);
}

function number(value, digits = 1) {
  const text = Math.abs(value).toLocaleString("en-US", { maximumFractionDigits: digits });
  return value < 0 && /[1-9]/.test(text) ? `\u2212${text}` : text;
}

// Returns the label of a tick: 300, 10 k, 2.5 M.
function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${number(value / 1e6, 3)} M`;
  return size >= 1e4 ? `${number(value / 1e3, 3)} k` : number(value, 4);
}

// Returns a time as days, hours, minutes and seconds: `2 d 03:15:20`. `step` is the distance of ticks, s.
function clock(seconds, step = 1) {
  const rounded = Math.round(seconds / Math.min(step, 1)) * Math.min(step, 1);
  const days = Math.floor(rounded / DAY);
  const rest = rounded - days * DAY;
  const pad = (value) => String(Math.floor(value)).padStart(2, "0");
  const hours = `${pad(rest / HOUR)}:${pad((rest % HOUR) / MINUTE)}`;
  const digits = step < 1 ? Math.ceil(-Math.log10(step)) : 0;
  const exact = (rest % MINUTE).toFixed(digits).padStart(digits ? digits + 3 : 2, "0");
  return `${days ? `${days} d ` : ""}${hours}${step < MINUTE ? `:${exact}` : ""}`;
}

function tickLabel(seconds, step, last) {
  if (last < SHORT) return `${number(seconds, 3)} s`;
  return step >= DAY ? `${number(seconds / DAY)} d` : clock(seconds, step);
}

// Returns the unit of the labels of a time axis up to `last` (s); short times have it in the labels.
function timeUnit(last) {
  if (last < SHORT) return "";
  return last < DAY ? " (h:min)" : " (days, h:min)";
}

function showTime(seconds) {
  const exact = `${number(seconds)} s`;
  if (Math.abs(seconds) < SHORT) return exact;
  return `${exact} (${seconds < 0 ? "\u2212" : ""}${clock(Math.abs(seconds))})`;
}
