// Requests to the server: a busy one is asked again, and a refusal becomes an error.

const MAX_TRIES = 12;
let key = "";

export function useKey(text) {
  key = text;
}

export class HTTPError extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

const sleep = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));

const fetchWithRetry = async (path, { image, signal, onWait }) => {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const options = { headers, signal };
  if (image) {
    headers["Content-Type"] = "application/octet-stream";
    Object.assign(options, { method: "POST", body: image });
  }
  for (let attempt = 1; ; attempt += 1) {
    let response;
    try {
      response = await fetch(path, options);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new HTTPError(0, "The server does not respond. Is it still running?");
    }
    if (response.status === 503 && attempt < MAX_TRIES) {
      const seconds = Math.min(Number(response.headers.get("Retry-After")) || 1, 30);
      onWait?.(`The server is busy; trying again in ${seconds} s.`);
      await sleep(seconds);
      signal?.throwIfAborted();
      continue;
    }
    if (response.ok) return response;
    const { error } = await response.json().catch(() => ({}));
    throw new HTTPError(response.status, error ?? `The server responded with ${response.status}.`);
  }
};

export const fetchJSON = async (path, options) => (await fetchWithRetry(path, options)).json();

// Fetched, because an image element would not send the key.
export const fetchImage = async (path, options) => createImageBitmap(await (await fetchWithRetry(path, options)).blob());
