//! The Jinja of chat templates, within limits. A template comes with a model from elsewhere: a short one may loop for ever,
//! fill memory, or nest values until the stack ends.
//!
//! Two limits hold together. Fuel pays for each instruction and for the bytes that instructions make. [`watched`] ends all
//! other work: a comparison of lists that contain themselves many times is one instruction without an end.

use std::sync::Arc;
use std::time::Duration;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::python_json::tojson;
use crate::text::watched::{Limits, Progress, watched};

/// The longest template, in bytes. Those of models have up to some ten thousand.
const LONGEST: usize = 256 << 10;

/// The function of `transformers` that some templates take the date from. Many ask if it is defined.
const CLOCK: &str = "strftime_now";

/// Limits for compiling: for a chain of 128 Ki attributes, of [`LONGEST`] bytes, the library recurses once for each
/// attribute.
const COMPILING: Limits = Limits { stack: 256 << 20, time: Duration::from_secs(2) };

/// Fuel of any rendering. An instruction takes 1, as do 64 bytes that are made. Llama 3 takes 40 for a message.
const BASE_FUEL: u64 = 100_000;
/// Fuel for each value that a template is given, such as a message's role: templates loop over them several times.
const FUEL_OF_VALUE: u64 = 400;
/// So many bytes of text given to a template add one fuel. It pays for 32 copies of each byte.
const BYTES_OF_FUEL: u64 = 2;

/// Stack for each fuel: an instruction may nest a value once more, and the library recurses into nested values.
const STACK_OF_FUEL: usize = 640;
/// Stack beside that, in bytes.
const BASE_STACK: usize = 16 << 20;
/// Time for each fuel beside [`BASE_TIME`]: many times as much as one takes.
const TIME_OF_FUEL: Duration = Duration::from_micros(1);
/// Time of any rendering. Usual ones take some thousandths of it.
const BASE_TIME: Duration = Duration::from_millis(500);

/// A template that was compiled.
#[derive(Clone)]
pub(crate) struct Engine {
    environment: Arc<Environment<'static>>,
}

/// Renders the template on a watched thread with enough stack. Only [`Engine::run`] makes one.
pub(crate) struct Renderer {
    environment: Environment<'static>,
    progress: &'static Progress,
}

/// How much a template is given.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Size {
    values: u64,
    bytes: u64,
}

impl Engine {
    /// Fails on a template that is too long to be searched and compiled.
    ///
    /// # Errors
    /// The template is too long.
    pub(crate) fn check_length(source: &str) -> Result<(), String> {
        match source.len() {
            0..=LONGEST => Ok(()),
            bytes => Err(format!("it has {bytes} bytes, and at most {LONGEST} are taken")),
        }
    }

    /// Compiles a template of a length that was checked.
    ///
    /// # Errors
    /// The mistake in the template.
    pub(crate) fn compile(source: String) -> Result<Engine, String> {
        watched(COMPILING, move |_| {
            let mut environment = Environment::new();
            let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
            environment.set_syntax(syntax.map_err(|error| error.to_string())?);
            add_functions(&mut environment);
            environment.add_template_owned("chat", source).map_err(|error| error.to_string())?;
            Ok(Engine { environment: environment.into() })
        })
    }

    /// The result of `work`, with as many renderings of the template as `work` likes, from values of that size.
    ///
    /// # Errors
    /// The error of `work`; a rendering that takes longer than it may.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        size: Size,
        work: impl FnOnce(&Renderer) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let fuel = BASE_FUEL + FUEL_OF_VALUE * size.values + size.bytes / BYTES_OF_FUEL;
        let stack = BASE_STACK.saturating_add(STACK_OF_FUEL.saturating_mul(fuel as usize));
        let time = BASE_TIME + TIME_OF_FUEL * u32::try_from(fuel).unwrap_or(u32::MAX);
        let mut environment = (*self.environment).clone();
        environment.set_fuel(Some(fuel));
        watched(Limits { stack, time }, move |progress| work(&Renderer { environment, progress }))
    }
}

/// Adds the functions of chat templates, and removes functions that show the inside of the library.
fn add_functions(environment: &mut Environment<'_>) {
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.add_filter("tojson", tojson);
    environment.remove_filter("pprint");
    environment.remove_global("debug");
    environment.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message.to_string()))
    });
}

impl Renderer {
    /// The text that the template makes of the variables in `context`.
    ///
    /// # Errors
    /// The template's error for values that it does not take; too much work.
    pub(crate) fn render(&self, context: Value) -> Result<String, String> {
        self.progress.step();
        let rendered = self.environment.get_template("chat").and_then(|template| template.render(context));
        rendered.map_err(|error| self.described(&error))
    }

    fn described(&self, error: &Error) -> String {
        let causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
        let mut causes = causes.filter_map(|cause| cause.downcast_ref::<Error>());
        if error.kind() == ErrorKind::UnknownFunction && error.detail().is_some_and(|detail| detail.contains(CLOCK)) {
            return format!(
                "it asks for the date with {CLOCK}, and templates have no clock, so that every run has the same tokens: write a \
                 date in a copy of it"
            );
        }
        match causes.any(|cause| cause.kind() == ErrorKind::OutOfFuel) {
            true => {
                let fuel = self.environment.fuel().unwrap_or_default();
                format!("it loops or makes values without end: it takes more than {fuel} steps, the most for this size")
            }
            false => error.detail().map_or_else(|| error.to_string(), str::to_string),
        }
    }
}

impl Size {
    /// The size of values that were read from JSON. JSON is nested a hundred times at most.
    pub(crate) fn of<'v>(values: impl IntoIterator<Item = &'v Value>) -> Size {
        let mut size = Size::default();
        values.into_iter().for_each(|value| size.add(value));
        size
    }

    fn add(&mut self, value: &Value) {
        self.values += 1;
        match value.kind() {
            ValueKind::String => self.bytes += value.as_str().map_or(0, str::len) as u64,
            ValueKind::Seq | ValueKind::Iterable => {
                value.try_iter().into_iter().flatten().for_each(|item| self.add(&item))
            }
            ValueKind::Map => {
                for key in value.try_iter().into_iter().flatten() {
                    self.bytes += key.as_str().map_or(0, str::len) as u64;
                    self.add(&value.get_item(&key).unwrap_or_default());
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn each_rendering_of_a_conversation_has_the_whole_time() {
        let engine = Engine::compile("text".into()).unwrap();
        let rendered = engine.run(Size::default(), |renderer| {
            let begun = Instant::now();
            while begun.elapsed() < 2 * (BASE_TIME + TIME_OF_FUEL * BASE_FUEL as u32) {
                renderer.render(Value::default())?;
            }
            Ok(())
        });
        assert_eq!(rendered, Ok(()));
    }
}
