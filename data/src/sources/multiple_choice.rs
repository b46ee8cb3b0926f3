//! Multiple-choice questions as samples: each ending is a row of its own, and only its tokens are targets.

use std::ops::Range;
use std::path::Path;

use common::UserError;
use common::format::counted;
use sha2::{Digest, Sha256};

use crate::config::DataConfig;
use crate::identity::{Identities, Identity};
use crate::splits::{Chosen, Purpose};
use crate::text::files::{Question, Records, Segment, in_parallel, read_files, text_files};
use crate::text::tokenizer::Tokenizer;

/// The questions of a file, in memory.
pub struct MultipleChoice {
    /// Endings of all questions, one question after the other.
    rows: Vec<Row>,
    /// Each question.
    questions: Vec<Asked>,
    /// Notices for the user about the file, a line each.
    pub notices: Vec<String>,
    /// The size of the tokenizer's vocabulary.
    pub tokenizer_vocab: usize,
}

/// A question, with the endings as rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The question's line or row in the file, from 1.
    pub line: usize,
    /// The question's rows.
    pub rows: Range<usize>,
    /// The right ending, from 0.
    pub label: usize,
    /// Characters of each ending.
    pub characters: Vec<usize>,
}

/// An ending after the question's context, as tokens.
struct Row {
    /// The last tokens of context and ending, at most one more than a sample has inputs.
    tokens: Vec<i32>,
    /// The number of tokens of the ending. They are the last ones.
    ending: usize,
    /// The context was cut.
    is_cut: bool,
}

/// The accuracy of a model's choices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Accuracy {
    /// The share of questions for which the right ending was chosen.
    pub share: f64,
    /// The accuracy's standard error: the standard deviation over the questions, divided by the root of their number. 0
    /// for a single question.
    pub stderr: f64,
}

impl MultipleChoice {
    /// Opens the questions of the file, or folder, at `name`: JSON lines. Text is read with `data.tokenizer`, for samples of `seq`
    /// inputs below `vocab`. Long contexts are cut from the left.
    ///
    /// # Errors
    /// A file that cannot be read, a line that is no question, an ending that is longer than a sample.
    pub fn open(name: &str, data: &DataConfig, seq: usize, vocab: usize) -> Result<MultipleChoice, UserError> {
        let tokenizer = Tokenizer::open(&data.tokenizer, data.end_of_text.as_deref())?;
        let Chosen { files, mut notices, .. } =
            text_files(&format!("`{name}`"), Path::new(name), Records::Questions, Purpose::Evaluate)?;
        let tokenizer_vocab = tokenizer.vocab();
        let mut all = MultipleChoice { rows: Vec::new(), questions: Vec::new(), notices: Vec::new(), tokenizer_vocab };
        let of_files = read_files(&files, &tokenizer, Records::Questions, |segments| {
            for (line, question, rows) in in_parallel(segments, |segment| asked(segment, &tokenizer, seq))? {
                all.push(line, &question, rows);
            }
            Ok::<(), UserError>(())
        })?;
        notices.extend(of_files);
        all.notices = notices.lines();
        let wrong = |what: String, rule: &str, fix: String| Err(UserError::new(format!("`{name}` {what}"), rule, fix));
        if all.questions.is_empty() {
            let fix = "name a file with JSON lines that are questions".into();
            return wrong("has no question".into(), "an accuracy is over at least one question", fix);
        }
        let largest = all.rows.iter().flat_map(|row| &row.tokens).max().map_or(0, |&token| token as usize);
        if largest >= vocab {
            return wrong(
                format!("has token {largest}, and model.vocab = {vocab}"),
                "tokens are below the size of the vocabulary",
                "name the model's tokenizer with --tokenizer".into(),
            );
        }
        all.notices.push(format!("{name}: {}", all.described(seq)));
        Ok(all)
    }

    fn push(&mut self, line: usize, question: &Question, rows: Vec<Row>) {
        let first = self.rows.len();
        self.rows.extend(rows);
        self.questions.push(Asked {
            line,
            rows: first..self.rows.len(),
            label: question.label,
            characters: question.endings.iter().map(|ending| ending.chars().count()).collect(),
        });
    }

    fn described(&self, seq: usize) -> String {
        let inputs: usize = self.rows.iter().map(|row| row.tokens.len() - 1).sum();
        let cut = match self.rows.iter().filter(|row| row.is_cut).count() {
            0 => String::new(),
            cut => format!(", {cut} of them behind a context cut to {}", counted(seq, "token")),
        };
        format!(
            "{}, {}{cut}; {:.0} % of a row is padding on average",
            counted(self.questions.len(), "question"),
            counted(self.rows.len(), "ending"),
            100.0 * (1.0 - inputs as f64 / (self.rows.len() * seq) as f64)
        )
    }

    /// The questions.
    pub fn questions(&self) -> &[Asked] {
        &self.questions
    }

    /// The number of targets of a range of rows.
    pub fn targets(&self, rows: Range<usize>) -> u64 {
        self.rows[rows].iter().map(|row| row.ending as u64).sum()
    }

    /// Writes a row into `row`: `seq` inputs, then `seq` targets. A place without a target is -1. Returns the places of
    /// the targets, as a range of the row's inputs.
    pub fn read(&self, number: usize, row: &mut [i32]) -> Range<usize> {
        let (inputs, targets) = row.split_at_mut(row.len() / 2);
        let (tokens, counted) = (&self.rows[number].tokens, self.counted(number));
        // The inputs after the ending do not matter: the ending does not see them.
        inputs.fill(0);
        targets.fill(-1);
        inputs[..counted.end].copy_from_slice(&tokens[..counted.end]);
        targets[counted.clone()].copy_from_slice(&tokens[counted.start + 1..]);
        counted
    }

    /// The places of a row's targets, as a range of the row's inputs.
    pub fn counted(&self, number: usize) -> Range<usize> {
        let Row { tokens, ending, .. } = &self.rows[number];
        tokens.len() - 1 - ending..tokens.len() - 1
    }

    /// The identity of the questions, under `name`.
    pub fn identities(&self, name: &str) -> Identities {
        let mut hash = Sha256::new();
        for row in &self.rows {
            hash.update((row.ending as u64).to_le_bytes());
            row.tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
        }
        self.questions.iter().for_each(|asked| hash.update((asked.label as u64).to_le_bytes()));
        let tokens = self.rows.iter().map(|row| row.tokens.len() as u64).sum();
        Identities::from([(name.into(), Identity { tokens, sha256: format!("{:x}", hash.finalize()) })])
    }
}

impl Asked {
    /// The ending that a model chooses by the sums of the log-likelihoods of the endings' tokens: the first of the largest.
    pub fn chosen(&self, sums: &[f64]) -> usize {
        first_largest(sums.iter().copied())
    }

    /// As [`Asked::chosen`], but each sum is divided by the ending's number of characters. So long endings have no
    /// disadvantage.
    pub fn chosen_by_mean(&self, sums: &[f64]) -> usize {
        first_largest(sums.iter().zip(&self.characters).map(|(sum, characters)| sum / *characters as f64))
    }
}

fn first_largest(values: impl Iterator<Item = f64>) -> usize {
    let pairs = values.enumerate();
    pairs.reduce(|best, next| if next.1 > best.1 { next } else { best }).map_or(0, |(at, _)| at)
}

impl Accuracy {
    /// The accuracy of `right` right answers to `all` questions; `all` is above 0.
    pub fn new(right: usize, all: usize) -> Accuracy {
        let share = right as f64 / all as f64;
        Accuracy { share, stderr: (share * (1.0 - share) / (all as f64 - 1.0).max(1.0)).sqrt() }
    }
}

/// The question of a line, with the line's number, and the endings as rows.
fn asked(segment: &Segment, tokenizer: &Tokenizer, seq: usize) -> Result<(usize, Question, Vec<Row>), UserError> {
    let (name, rule) = (segment.path.display(), Records::Questions.rule());
    let Some(place) = segment.place else {
        let what = format!("{name} has no JSON lines");
        return Err(UserError::new(what, rule, "name a .jsonl file with questions"));
    };
    let wrong = |what: String| UserError::new(format!("{name} {place} {what}"), rule, "correct that line");
    let question = segment.ensure_record().and_then(|()| Question::of_line(&segment.text)).map_err(wrong)?;
    let mut rows = Vec::new();
    for (number, ending) in question.endings.iter().enumerate() {
        let row = row(&question.context, ending, tokenizer, seq)
            .map_err(|error| wrong(format!("is refused by the tokenizer: {error}")))?;
        if row.ending > seq {
            return Err(UserError::new(
                format!("{name} {place} has an ending, number {}, of {}", number + 1, counted(row.ending, "token")),
                format!("an ending has at most model.seq_length = {seq}"),
                "set a larger --seq-length, or remove that line",
            ));
        }
        rows.push(row);
    }
    Ok((place.number(), question, rows))
}

/// The tokens of a context, a space and an ending, divided as in lm-evaluation-harness: both are tokenised together, and
/// the ending's tokens begin at the end of the context tokenised alone. The context follows the tokens that begin a
/// document. If there are none, a context without tokens becomes the token that ends a document.
fn row(context: &str, ending: &str, tokenizer: &Tokenizer, seq: usize) -> Result<Row, String> {
    // Spaces at the end of a context belong to the token that begins the ending.
    let begin = tokenizer.encode(context.trim_end())?.len();
    let mut tokens = tokenizer.encode(&format!("{context} {ending}"))?;
    let ending = tokens.len().saturating_sub(begin);
    if ending == 0 {
        return Err("an ending has no token of its own".into());
    }
    match tokenizer.begin() {
        [] if begin == 0 => tokens.insert(0, tokenizer.end_of_text()),
        first => drop(tokens.splice(..0, first.iter().copied())),
    }
    let cut = tokens.len().saturating_sub(seq + 1);
    Ok(Row { tokens: tokens[cut..].iter().map(|&token| token as i32).collect(), ending, is_cut: cut > 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(lines: &str, seq: usize) -> Result<MultipleChoice, UserError> {
        let file = tempfile::Builder::new().suffix(".jsonl").tempfile().unwrap();
        std::fs::write(file.path(), lines).unwrap();
        MultipleChoice::open(file.path().to_str().unwrap(), &DataConfig::for_tests(), seq, 256)
    }

    #[test]
    fn a_row_is_a_context_cut_from_the_left_and_an_ending_whose_tokens_are_the_targets() {
        let lines = concat!(
            r#"{"context": "abc ", "choices": ["d", "\u00e9f"], "gold": 1}"#,
            "\n\n",
            r#"{"context": "", "choices": ["g", "hi", "j"], "gold": 0}"#,
        );
        let all = opened(lines, 6).unwrap();
        let row = |number| {
            let mut row = [7; 12];
            let counted = all.read(number, &mut row);
            (row, counted)
        };
        let bytes = |text: &str| text.bytes().map(i32::from).collect::<Vec<_>>();
        // Both spaces are the ending's.
        assert_eq!(row(0).0[..6], [bytes("abc  "), vec![0]].concat());
        assert_eq!(row(0).0[6..], [vec![-1, -1], bytes("  d"), vec![-1]].concat());
        assert_eq!(row(0).1, 2..5);
        assert_eq!(row(1).0[..6], bytes("bc  \u{e9}f")[..6], "the first byte was cut");
        assert_eq!(row(1).0[6..], [vec![-1], bytes("  \u{e9}f")].concat());
        assert_eq!(row(2).0, [vec![0, 32, 0, 0, 0, 0], bytes(" g"), vec![-1; 4]].concat()[..]);
        assert_eq!(all.questions()[1], Asked { line: 3, rows: 2..5, label: 0, characters: vec![1, 2, 1] });
        assert_eq!(all.questions()[0].characters, [1, 2], "characters, not bytes");
        assert_eq!([0..2, 2..5].map(|rows| all.targets(rows)), [8, 7]);
        assert!(all.notices[0].contains("2 questions, 5 endings, 1 of them behind a context cut to 6 tokens"));
    }

    #[test]
    fn questions_are_found_in_a_file_of_any_name_and_in_a_list() {
        let right = r#"{"ctx": "a", "endings": ["b", "c"], "label": 0}"#;
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in
            [("questions", right), ("questions.txt", right), ("questions.json", &format!("[{right}]"))]
        {
            let path = folder.path().join(name);
            std::fs::write(&path, content).unwrap();
            let opened = MultipleChoice::open(path.to_str().unwrap(), &DataConfig::for_tests(), 8, 256);
            assert_eq!(opened.unwrap().questions().len(), 1, "{name}");
        }
    }

    #[test]
    fn the_first_of_the_largest_is_chosen_by_the_sum_or_by_the_mean() {
        let asked = Asked { line: 1, rows: 0..3, label: 0, characters: vec![10, 2, 10] };
        assert_eq!(asked.chosen(&[-5.0, -3.0, -3.0]), 1);
        assert_eq!(asked.chosen_by_mean(&[-5.0, -3.0, -5.0]), 0);
        let Accuracy { share, stderr } = Accuracy::new(3, 4);
        assert!(share == 0.75 && (stderr - 0.25).abs() < 1e-15);
        assert_eq!(Accuracy::new(1, 1), Accuracy { share: 1.0, stderr: 0.0 });
    }

    #[test]
    fn wrong_files_are_refused_with_the_line() {
        let right = r#"{"ctx": "a", "endings": ["b", "c"], "label": 0}"#;
        for (lines, what) in [
            (format!("{right}\n\n{{}}"), "line 3 has no `label`"),
            (
                format!("{right}\n{}", right.replace("\"b\"", "\"a long ending\"")),
                "line 2 has an ending, number 1, of 14 tokens",
            ),
            ("\n".into(), "has no question"),
        ] {
            let error = opened(&lines, 8).err().unwrap().to_string();
            assert!(error.contains(what), "{error}");
        }
        assert_ne!(
            opened(right, 8).unwrap().identities("x"),
            opened(&right.replace("0}", "1}"), 8).unwrap().identities("x")
        );
    }
}
