// Talking to the server: a busy one is asked again, and what it refuses becomes an error's text.

const TRIES = 12;
let key = "";

export function useKey(text) {
  key = text;
}

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

const sleep = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));

const fetchPatiently = async (path, { image, signal, waiting }) => {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const options = { headers, signal };
  if (image) {
    headers["Content-Type"] = "application/octet-stream";
    Object.assign(options, { method: "POST", body: image });
  }
  for (let turn = 1; ; turn += 1) {
    let answer;
    try {
      answer = await fetch(path, options);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Refused(0, "The server does not answer. Is it still running?");
    }
    if (answer.status === 503 && turn < TRIES) {
      const seconds = Math.min(Number(answer.headers.get("Retry-After")) || 1, 30);
      waiting?.(`The server is busy; trying again in ${seconds} s.`);
      await sleep(seconds);
      signal?.throwIfAborted();
      continue;
    }
    if (answer.ok) return answer;
    const told = await answer.json().catch(() => ({}));
    throw new Refused(answer.status, told.error ?? `The server said ${answer.status}.`);
  }
};

export const ask = async (path, options) => (await fetchPatiently(path, options)).json();

// An image that the server has; fetched, because an image element would not send the key.
export const askImage = async (path, options) => createImageBitmap(await (await fetchPatiently(path, options)).blob());
