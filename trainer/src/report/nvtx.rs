//! Names of steps and regions for NVIDIA's profilers, as NVTX ranges on the host's row.

use std::fmt::{Debug, Write};

use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// A profiler sets it for the programs that it starts: the library that gets the ranges.
const LIBRARY: &str = "NVTX_INJECTION64_PATH";

/// Makes every span a range, if a profiler watches.
pub(super) fn ranges<S: Subscriber + for<'s> LookupSpan<'s>>() -> Option<impl Layer<S>> {
    std::env::var_os(LIBRARY).map(|_| Ranges.with_filter(LevelFilter::DEBUG))
}

struct Ranges;

/// A span's name and values, such as `step 3`. A region is called by its own name.
struct Name(String);

impl Visit for Name {
    fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {value:?}");
    }
}

impl<S: Subscriber + for<'s> LookupSpan<'s>> Layer<S> for Ranges {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut name = Name(attributes.metadata().name().into());
        attributes.record(&mut name);
        if let Some(region) = name.0.strip_prefix("region ") {
            name.0 = region.into();
        }
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(name);
        }
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(Name(name)) = span.extensions().get()
        {
            ::nvtx::range_push!("{name}");
        }
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        if context.span(id).is_some_and(|span| span.extensions().get::<Name>().is_some()) {
            ::nvtx::range_pop!();
        }
    }
}
