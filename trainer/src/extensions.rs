//! Code that a program adds to the trainer: `docs/extending.md` shows all of it. A program gives its [`Extensions`] to
//! `tools::main`, which reads the command line. From then on they are the same for the whole process, as the trainer's own
//! tables are.

use std::io;
use std::sync::{Arc, OnceLock};

use common::UserError;
use data::Source;
use engine::model::{OwnLoss, OwnPart};

pub use crate::config::OwnOptimizer;
use crate::config::options::{self, Kind, OptionSpec, option};
use crate::config::{RunConfig, optimizers};
use crate::families::{self, ModelFamily};
use crate::report::metrics::StepMetrics;

/// The code that a program adds to the trainer. Each kind is a list, and users choose from it by name.
#[derive(Clone, Copy)]
pub struct Extensions {
    /// Options. Their keys begin with `own.`, and [`RunConfig::own`] has their values.
    pub options: &'static [OptionSpec],
    /// Optimizers: further words of `optimizer.kind`.
    pub optimizers: &'static [OwnOptimizer],
    /// Parts in place of dense feed-forward layers, chosen by `own.part`.
    pub parts: &'static [Own<Arc<dyn OwnPart>>],
    /// Losses in place of cross-entropy, chosen by `own.loss`.
    pub losses: &'static [Own<Arc<dyn OwnLoss>>],
    /// Sources of samples, chosen by `own.data`, in place of files.
    pub sources: &'static [Own<Arc<dyn Source>>],
    /// Receivers of every step's metrics, on rank 0. `own.metrics` names those of a run.
    pub sinks: &'static [Own<Box<dyn MetricsSink>>],
    /// Model families. Their sizes are further words of `model.preset`.
    pub families: &'static [ModelFamily],
}

/// A thing that users choose by name.
pub struct Own<T: 'static> {
    /// The word that users write.
    pub name: &'static str,
    /// The thing for a run. The error names the setting that is wrong.
    pub make: fn(&RunConfig) -> Result<T, UserError>,
}

/// A receiver of every step's metrics, beside `metrics.jsonl`.
pub trait MetricsSink: Send {
    /// Takes the metrics of a step. A sink that fails is told once, and gets no more of them; the run goes on.
    ///
    /// # Errors
    /// Whatever keeps the sink from taking them.
    fn write(&mut self, step: &StepMetrics) -> io::Result<()>;
}

static INSTALLED: OnceLock<Extensions> = OnceLock::new();

impl Extensions {
    /// The trainer alone.
    pub const NONE: Extensions =
        Extensions { options: &[], optimizers: &[], parts: &[], losses: &[], sources: &[], sinks: &[], families: &[] };

    /// Installs the extensions in this process. Called once, before anything asks for options.
    ///
    /// # Panics
    /// Names that stand twice, keys of options that do not begin with `own.`, or a second call: faults of the program.
    pub fn install(self) {
        let sizes = |families: &'static [ModelFamily]| families.iter().flat_map(|family| family.sizes);
        let presets = sizes(self.families).map(|size| size.name).collect();
        let optimizers = self.optimizers.iter().map(|own| own.name).collect();
        options::add(self.options(), &[("optimizer.kind", optimizers), ("model.preset", presets)]);
        optimizers::add(self.optimizers);
        families::add(self.families);
        assert!(INSTALLED.set(self).is_ok(), "extensions are installed once");
        let mut words: Vec<&str> = options::options().iter().flat_map(OptionSpec::flags).collect();
        let choices = options::options().iter().filter_map(|option| match option.kind {
            Kind::Choice(words) => Some(words.iter().map(move |word| (option.key, *word))),
            _ => None,
        });
        let mut choices: Vec<_> = choices.flatten().collect();
        words.sort_unstable();
        choices.sort_unstable();
        assert!(words.windows(2).all(|pair| pair[0] != pair[1]), "a flag stands twice: {words:?}");
        assert!(choices.windows(2).all(|pair| pair[0] != pair[1]), "a name stands twice: {choices:?}");
    }

    /// The options that choose from the lists, and the program's own.
    fn options(&self) -> Vec<OptionSpec> {
        let stray = self.options.iter().find(|option| !option.key.starts_with("own."));
        assert!(stray.is_none(), "the key of an own option begins with `own.`: {}", stray.map_or("", |of| of.key));
        let one = |key, flag, words: Vec<&'static str>, doc| {
            (!words.is_empty()).then(|| option(key, flag, &[], "", Kind::Choice(words.leak()), doc))
        };
        let sinks = Own::names(self.sinks);
        let told = "Receivers of every step's metrics, of this program's";
        let chosen = [
            one(
                "own.part",
                "own-part",
                Own::names(self.parts),
                "Part of this program's in place of dense feed-forward layers",
            ),
            one("own.loss", "own-loss", Own::names(self.losses), "Loss of this program's in place of cross-entropy"),
            one(
                "own.data",
                "own-data",
                Own::names(self.sources),
                "Source of samples of this program's, in place of data.path",
            ),
            (!sinks.is_empty())
                .then(|| option("own.metrics", "own-metrics", &[], "[]", Kind::Choices(sinks.leak()), told)),
        ];
        chosen.into_iter().flatten().chain(self.options.iter().copied()).collect()
    }

    /// The extensions of this process.
    pub fn installed() -> &'static Extensions {
        INSTALLED.get().unwrap_or(&Extensions::NONE)
    }
}

impl<T> Own<T> {
    /// The thing of the list that `own.KEY` names, made for a run; `None` if the run names none.
    ///
    /// # Errors
    /// Those of its maker; a name that this program does not have, as of a checkpoint of another one.
    pub fn chosen(list: &'static [Own<T>], key: &str, config: &RunConfig) -> Result<Option<T>, UserError> {
        let Some(name) = config.own.text(key) else { return Ok(None) };
        let found = list.iter().find(|own| own.name == name).ok_or_else(|| {
            UserError::new(
                format!("own.{key} = {name:?}"),
                "the code of that name is not in this program",
                "use the program that has it",
            )
        })?;
        (found.make)(config).map(Some)
    }

    /// The names of a list.
    pub fn names(list: &[Own<T>]) -> Vec<&'static str> {
        list.iter().map(|own| own.name).collect()
    }
}
