//! JSON templates with `${NAME}` holes, compiled once, so that rendering an object mainly copies bytes.

/// A template split at its holes. `F` stands for a value that differs between objects.
#[derive(Debug)]
pub(crate) struct ObjectTemplate<F> {
    text: Vec<u8>,
    /// Positions in the text, with the value to insert there.
    cuts: Vec<(usize, F)>,
}

impl<F> ObjectTemplate<F> {
    /// Compiles a template, without its line breaks and indentation. `fill` returns the content of a hole: a text that is the same
    /// in all objects, and optionally a value that follows this text and differs between objects.
    pub(crate) fn compile(text: &str, fill: impl Fn(&str) -> (String, Option<F>)) -> Self {
        let joined: String = text.lines().map(str::trim).collect();
        let (mut rest, mut text, mut cuts) = (joined.as_str(), Vec::new(), Vec::new());
        while let Some((before, (hole, after))) =
            rest.split_once("${").and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
        {
            text.extend_from_slice(before.as_bytes());
            let (shared, value) = fill(hole);
            text.extend_from_slice(shared.as_bytes());
            cuts.extend(value.map(|value| (text.len(), value)));
            rest = after;
        }
        text.extend_from_slice(rest.as_bytes());
        Self { text, cuts }
    }

    /// Appends an object; `put` appends a value.
    pub(crate) fn render(&self, out: &mut Vec<u8>, mut put: impl FnMut(&F, &mut Vec<u8>)) {
        let mut from = 0;
        for (at, value) in &self.cuts {
            out.extend_from_slice(&self.text[from..*at]);
            from = *at;
            put(value, out);
        }
        out.extend_from_slice(&self.text[from..]);
    }
}
