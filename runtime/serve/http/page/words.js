// Words of texts, in the sense of the server's alignments.

// Python's white space, which differs from that of JavaScript's \s in a few control characters.
const WORD = /[^\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+/gu;
// Scripts whose words have no space between them.
const UNSPACED = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}\p{Script=Myanmar}]/u;

/**
 * Return the words of a text as {text, begin, index}.
 *
 * Words of scripts without spaces are smaller than those that the server aligns: `index` is the
 * place of the server's word, which several of them share.
 */
export function wordsOf(text, language) {
  const found = [];
  let index = 0;
  for (const match of text.matchAll(WORD)) {
    for (const part of partsOf(match[0], language)) {
      found.push({ text: part.text, begin: match.index + part.begin, index });
    }
    index += 1;
  }
  return found;
}

function partsOf(word, language) {
  if (!UNSPACED.test(word) || typeof Intl.Segmenter !== "function") {
    return [{ text: word, begin: 0 }];
  }
  const parts = [];
  for (const { segment, index, isWordLike } of segmenter(language).segment(word)) {
    if (isWordLike || parts.length === 0) {
      parts.push({ text: segment, begin: index });
    } else {
      parts.at(-1).text += segment; // punctuation
    }
  }
  return parts;
}

function segmenter(language) {
  try {
    return new Intl.Segmenter(language, { granularity: "word" });
  } catch {
    return new Intl.Segmenter(undefined, { granularity: "word" }); // no such code
  }
}
