// Texts in lines, which are translated one by one and cached: typing only requests the changed line.

// [{ before, text, after }…]: requests do not contain the whitespace around the text of a line
export function linesOf(text) {
  return text.split(/\r\n|\n|\r/).map((line) => {
    const inner = line.trim();
    const at = inner ? line.indexOf(inner) : line.length;
    return { before: line.slice(0, at), text: inner, after: line.slice(at + inner.length) };
  });
}

const CHUNK = 1500; // characters per request, so a long text appears piece by piece

export function* inChunks(texts, most) {
  let [chunk, size] = [[], 0];
  for (const text of texts) {
    if (chunk.length && (size + text.length > CHUNK || chunk.length >= most)) {
      yield chunk;
      [chunk, size] = [[], 0];
    }
    chunk.push(text);
    size += text.length;
  }
  if (chunk.length) yield chunk;
}

// The latest `most` answers, by request
export function makeKept(most) {
  const kept = new Map();
  return {
    get: (key) => {
      const value = kept.get(key);
      if (value !== undefined) {
        kept.delete(key);
        kept.set(key, value);
      }
      return value;
    },
    set: (key, value) => {
      kept.set(key, value);
      if (kept.size > most) kept.delete(kept.keys().next().value);
    },
  };
}

// The server counts characters, a browser counts UTF-16 units: place[character] is the browser's index
function placesOf(text) {
  const places = [];
  let at = 0;
  for (const character of text) {
    places.push(at);
    at += character.length;
  }
  places.push(at);
  return places;
}

const segmenters = new Map(); // by language

function segmenterOf(language) {
  if (!segmenters.has(language)) {
    const known = language && language !== "und" ? language : undefined;
    let made;
    try {
      made = new Intl.Segmenter(known, { granularity: "word" });
    } catch {
      made = new Intl.Segmenter(undefined, { granularity: "word" }); // not a language code
    }
    segmenters.set(language, made);
  }
  return segmenters.get(language);
}

const JOINS = /^[-‐‑'’]$/; // T-Shirt and l'eau are words

function segments(text, language) {
  const parts = [...segmenterOf(language).segment(text)];
  const found = [];
  parts.forEach(({ index, segment, isWordLike }, n) => {
    const last = found.at(-1);
    const joins = last?.isWord && JOINS.test(segment) && parts[n + 1]?.isWordLike;
    if (joins || last?.joins) Object.assign(last, { end: index + segment.length, joins });
    else found.push({ start: index, end: index + segment.length, isWord: isWordLike, joins: false });
  });
  return found;
}

// A span, extended to whole words
export function wholeWords(text, spans, language) {
  const found = segments(text, language).filter((word) =>
    spans.some(([start, end]) => start < word.end && word.start < end),
  );
  return found.filter((word) => word.isWord || found.length === 1).map((word) => [word.start, word.end]);
}

// A candidate in words: [{ start, end, text, tokens, share, sources }…] in the order of the text. A word
// ends where both the language and the tokens have an end. share: the probability of all its tokens, or null
// if it is unknown; sources: indices in the source, as the browser counts.
export function wordsOf(candidate, source, languages) {
  if (!cutWords.has(candidate)) cutWords.set(candidate, inWords(candidate, source, languages));
  return cutWords.get(candidate);
}

const cutWords = new WeakMap(); // candidate → its words

function inWords(candidate, source, languages) {
  const [own, theirs] = [placesOf(candidate.text), placesOf(source)];
  const tokens = candidate.tokens.map((token, index) => ({
    index,
    start: own[token.span[0]],
    end: own[token.span[1]],
    logProb: token.log_prob,
  }));
  const words = [];
  for (const segment of segments(candidate.text, languages.target)) {
    if (!candidate.text.slice(segment.start, segment.end).trim()) continue;
    const inside = tokens.filter((token) => token.start < segment.end && segment.start < token.end);
    const last = words.at(-1);
    if (last && inside.some((token) => last.tokens.includes(token))) {
      last.end = segment.end;
      last.isWord ||= segment.isWord;
      last.tokens.push(...inside.filter((token) => !last.tokens.includes(token)));
    } else words.push({ start: segment.start, end: segment.end, isWord: segment.isWord, tokens: inside });
  }
  return words.map((word) => {
    const known = word.tokens.length > 0 && word.tokens.every((token) => token.logProb !== null);
    const spans = candidate.alignment
      .filter((link) => word.tokens.some((token) => token.index === link.target))
      .map((link) => link.source_span.map((at) => theirs[at]))
      .filter(([start, end]) => end > start);
    return {
      ...word,
      text: candidate.text.slice(word.start, word.end),
      tokens: word.tokens.map((token) => token.index),
      share: known ? Math.exp(word.tokens.reduce((sum, token) => sum + token.logProb, 0)) : null,
      sources: wholeWords(source, spans, languages.source),
    };
  });
}

// Other beginnings at a word, most probable first: [{ prefix, share }…]. A word of several tokens can differ at
// each token.
export function othersAt(candidate, word, most) {
  const found = new Map();
  let before = 0; // log-probability of the word's tokens so far
  for (const index of word.tokens) {
    const token = candidate.tokens[index];
    for (const { prefix, log_prob: logProb } of token.alternatives ?? []) {
      const share = Math.exp(before + logProb);
      if (prefix !== null && !(found.get(prefix) >= share)) found.set(prefix, share);
    }
    before += token.log_prob ?? 0;
  }
  return [...found]
    .map(([prefix, share]) => ({ prefix, share }))
    .sort((a, b) => b.share - a.share)
    .slice(0, most);
}

const MOST_COMPARED = 400; // maximum number of compared pieces of a text

// A text in parts, [[text, whether the other text also has it]…], by the longest common subsequence of words
export function differing(text, other, language) {
  const [own, theirs] = [text, other].map((one) =>
    segments(one, language).map(({ start, end }) => one.slice(start, end)),
  );
  if (Math.max(own.length, theirs.length) > MOST_COMPARED) return [[text, true]];
  const common = own.map(() => []); // [i][j]: the length of the longest common subsequence from this point
  const at = (i, j) => common[i]?.[j] ?? 0;
  for (let i = own.length - 1; i >= 0; i--)
    for (let j = theirs.length - 1; j >= 0; j--)
      common[i][j] = own[i] === theirs[j] ? 1 + at(i + 1, j + 1) : Math.max(at(i + 1, j), at(i, j + 1));
  const stretches = [];
  for (let [i, j] = [0, 0]; i < own.length; i++) {
    while (j < theirs.length && own[i] !== theirs[j] && at(i, j + 1) >= at(i + 1, j)) j++;
    const same = j < theirs.length && own[i] === theirs[j];
    if (same) j++;
    if (stretches.at(-1)?.[1] === same) stretches.at(-1)[0] += own[i];
    else stretches.push([own[i], same]);
  }
  return stretches;
}
