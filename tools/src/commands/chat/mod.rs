//! `trainer chat`: a conversation with a trained model, in the words of its chat template.

mod answer;

use std::io::{BufRead, IsTerminal, Write, stdin, stdout};
use std::time::Instant;

use clap::Args;
use common::format::counted;
use common::terminal::{warn, write_to};
use common::{Mistakes, UserError};
use data::{ChatTemplate, TextStream};
use device::Device;
use engine::params::Params;
use launch::RankEnv;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use self::answer::Answer;
use super::args::filled;
use super::sample::{self, GenerationFlags, Loaded, SampleRequest, open_device, output};
use trainer::error::{RunError, file_error};
use trainer::generation::{Generator, Sampler};

/// Tokens that are read at a time, of a prompt.
const READ_AT_A_TIME: usize = 256;

/// A model to talk to, and how.
#[derive(Clone, Debug)]
pub struct ChatRequest {
    /// The model, and how the model chooses tokens. Each answer has the next seed.
    pub generation: SampleRequest,
    /// The system message: instructions to the model before the first message.
    pub system: Option<String>,
    /// `chatml`, or a file with a template. `None` for the one beside the tokenizer.
    pub chat_template: Option<String>,
}

/// The flags of `trainer chat`.
#[derive(Args, Debug)]
#[group(skip)]
pub(super) struct Flags {
    /// System message before the first message.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<String>,
    /// chatml, llama3, gemma, mistral, or a file with a chat template. If not given: the one of training, or of the model.
    #[arg(long, value_name = "TEMPLATE", value_parser = filled())]
    chat_template: Option<String>,
    #[command(flatten)]
    generation: GenerationFlags<1000>,
}

impl Flags {
    /// The conversation that a command line asks for. Numbers out of range are added to `mistakes`.
    pub(super) fn request(self, mistakes: &mut Mistakes) -> ChatRequest {
        let generation = self.generation.request(mistakes);
        ChatRequest { generation, system: self.system, chat_template: self.chat_template }
    }
}

/// The model of a conversation, and the model's template. What is wrong is added to `mistakes`.
pub(super) fn check(request: &ChatRequest, env: &RankEnv, mistakes: &mut Mistakes) -> Option<(Loaded, ChatTemplate)> {
    let loaded = sample::check(&request.generation, env, mistakes)?;
    let template = mistakes.keep(loaded.chat_template(&request.generation, request.chat_template.as_deref()))?;
    Some((loaded, template))
}

/// Talks until the input ends; returns a summary.
///
/// # Errors
/// What is wrong with the request; a terminal, device or file that fails.
pub(super) fn run(request: &ChatRequest, env: &RankEnv) -> Result<String, RunError> {
    let mut mistakes = Mistakes::default();
    let checked = check(request, env, &mut mistakes);
    mistakes.end()?;
    let Some((loaded, template)) = checked else { unreachable!("a request without mistakes has a model") };
    let device = open_device(&request.generation, env)?;
    warn(&loaded.describe());
    let is_asked = stdin().is_terminal() && stdout().is_terminal();
    if is_asked {
        warn("a message is a line; the arrow keys bring back earlier ones; Ctrl-D ends the conversation");
    }
    let mut chat = Chat::new(request, &loaded, &template, &device)?;
    let mut lines = stdin().lock();
    let mut input = if is_asked { Input::terminal()? } else { Input::Lines(&mut lines) };
    chat.talk(&mut input, &mut *output())
}

/// A conversation.
struct Chat<'c> {
    request: &'c SampleRequest,
    loaded: &'c Loaded,
    template: &'c ChatTemplate,
    generator: Generator,
    /// The weights that the generator reads. Fields drop in order.
    _params: Params,
    /// Role and content of each message so far.
    messages: Vec<(String, String)>,
    /// The text that ends an answer.
    end: String,
}

impl<'c> Chat<'c> {
    fn new(
        request: &'c ChatRequest,
        loaded: &'c Loaded,
        template: &'c ChatTemplate,
        device: &Device,
    ) -> Result<Chat<'c>, RunError> {
        let rows = loaded.shape.max_seq_len.min(READ_AT_A_TIME);
        let params = loaded.params(device)?;
        let generator = Generator::new(device, &loaded.shape, &params, rows)?;
        let messages = request.system.iter().map(|text| ("system".into(), text.clone())).collect();
        let end = template.end_of_answer();
        Ok(Chat { request: &request.generation, loaded, template, generator, _params: params, messages, end })
    }

    /// Answers each line of `input` that is not blank, until the input ends. Returns a line about the speed.
    fn talk(&mut self, input: &mut Input<'_>, out: &mut dyn Write) -> Result<String, RunError> {
        let closed = || file_error("standard output".into());
        let (mut answers, mut tokens, mut seconds) = (0, 0, 0.0);
        while let Some(line) = input.next()? {
            if line.trim().is_empty() {
                continue;
            }
            self.messages.push(("user".into(), line.trim().into()));
            let prompt = match self.prompt() {
                Ok(prompt) => prompt,
                // The conversation goes on without this message.
                Err(error) => {
                    warn(&error.to_string());
                    self.messages.pop();
                    continue;
                }
            };
            let began = Instant::now();
            let (written, goes_on) = self.answer(&prompt, answers as u64, out)?;
            (answers, tokens, seconds) = (answers + 1, tokens + written, seconds + began.elapsed().as_secs_f64());
            if !goes_on || !write_to(out, "\n").map_err(closed())? {
                break;
            }
        }
        let speed = tokens as f64 / f64::max(seconds, 1e-9);
        Ok(format!("{}, {}, {speed:.0} tokens/s", counted(answers, "answer"), counted(tokens, "token")))
    }

    /// The tokens that come before the next answer. A quarter of the model's context is left for the answer. If the
    /// tokens do not fit the rest, the oldest messages are dropped.
    fn prompt(&mut self) -> Result<Vec<i32>, UserError> {
        let seq = self.loaded.shape.max_seq_len;
        let most = seq - seq / 4;
        loop {
            let text = self.template.prompt(&self.messages).map_err(|error| {
                let rule = "a chat template takes messages of a system, a user and an assistant";
                UserError::new(format!("the chat template refuses the conversation: {error}"), rule, "name another")
            })?;
            let prompt = self.loaded.prompt_of_chat(&text);
            if prompt.as_ref().is_ok_and(|prompt| prompt.len() <= most) {
                return prompt;
            }
            let is_user = |(role, _): &(String, String)| role == "user";
            let users = (0..self.messages.len()).filter(|&at| is_user(&self.messages[at])).collect::<Vec<_>>();
            let [oldest, next, ..] = users[..] else {
                prompt?;
                return Err(UserError::new(
                    "the message is too long",
                    format!("a message fits three quarters of the model's context of {}", counted(seq, "token")),
                    "shorten it",
                ));
            };
            self.messages.drain(oldest..next);
        }
    }

    /// Writes an answer. Returns its tokens, and whether the output is still open.
    fn answer(&mut self, prompt: &[i32], number: u64, out: &mut dyn Write) -> Result<(usize, bool), RunError> {
        let Chat { request, loaded, generator, messages, end, .. } = self;
        let (mut count, mut is_open, mut is_complete) = (0, true, false);
        let mut show = |text: &str| write_to(out, text).map_err(file_error("standard output".into()));
        let before: Vec<u32> = prompt.iter().map(|&token| token as u32).collect();
        let mut stream = TextStream::after(&loaded.tokenizer, &before);
        let mut answer = Answer::new(end);
        let sampler = Sampler { seed: request.sampler.seed.wrapping_add(number), ..request.sampler };
        let logits = generator.read_on(prompt)?;
        generator.write(logits, (request.tokens, loaded.vocab()), sampler, |token| -> Result<bool, RunError> {
            count += 1;
            if token == loaded.tokenizer.end_of_text() {
                return Ok(false);
            }
            let (text, ends) = answer.push(&stream.push(token));
            (is_open, is_complete) = (show(&text)?, ends);
            Ok(is_open && !ends)
        })?;
        if is_open && !is_complete {
            let (text, ends) = answer.push(&stream.finish());
            let rest = if ends { String::new() } else { answer.finish() };
            is_open = show(&(text + &rest))?;
        }
        messages.push(("assistant".into(), answer.shown.trim().into()));
        Ok((count, is_open))
    }
}

/// The source of messages.
enum Input<'i> {
    /// A terminal. Lines are edited, and the arrow keys bring back earlier ones.
    Terminal(Box<DefaultEditor>),
    /// Lines of the input, unchanged.
    Lines(&'i mut dyn BufRead),
}

impl<'i> Input<'i> {
    /// An editor of lines on this process's terminal.
    ///
    /// # Errors
    /// The terminal cannot be used so.
    fn terminal() -> Result<Input<'i>, RunError> {
        DefaultEditor::new().map(|editor| Input::Terminal(Box::new(editor))).map_err(|error| failed(&error))
    }

    /// The next line; `None` at the end.
    ///
    /// # Errors
    /// It cannot be read.
    fn next(&mut self) -> Result<Option<String>, RunError> {
        match self {
            Input::Terminal(editor) => match editor.readline("> ") {
                Ok(line) => {
                    // A line that is not kept is only not brought back.
                    let _ = editor.add_history_entry(&line);
                    Ok(Some(line))
                }
                Err(ReadlineError::Eof | ReadlineError::Interrupted) => Ok(None),
                Err(error) => Err(failed(&error)),
            },
            Input::Lines(lines) => {
                let mut line = String::new();
                let read = lines.read_line(&mut line).map_err(file_error("standard input".into()))?;
                Ok((read > 0).then_some(line))
            }
        }
    }
}

fn failed(error: &ReadlineError) -> RunError {
    file_error("the terminal".into())(std::io::Error::other(error.to_string()))
}
