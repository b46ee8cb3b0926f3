//! The values that a parameter begins with.

use crate::host::{CHUNK, HostKernel, Pool, view};
use crate::ops::{Distribution, FirstValues, split_master};
use crate::{DType, bf16, philox};

impl HostKernel for FirstValues {
    fn run(&self, pool: &Pool) {
        let value = |at: usize| {
            let element = self.element(at);
            match self.distribution {
                Distribution::Normal(std) => std * philox::normal(self.seed, self.stream, element),
                Distribution::Constant(value) => value,
                Distribution::Uniform(bound) => bound * (2.0 * philox::uniform(self.seed, self.stream, element) - 1.0),
            }
        };
        let has_remainders = self.output.dtype == DType::U16;
        match self.output.dtype {
            DType::U16 => pool.for_each_chunk(view::write::<u16>(&self.output), CHUNK, |chunk, values| {
                values.iter_mut().enumerate().for_each(|(i, x)| *x = split_master(value(chunk * CHUNK + i)).1);
            }),
            DType::F32 => pool.for_each_chunk(view::write::<f32>(&self.output), CHUNK, |chunk, values| {
                values.iter_mut().enumerate().for_each(|(i, x)| *x = value(chunk * CHUNK + i));
            }),
            _ => pool.for_each_chunk(view::write::<bf16>(&self.output), CHUNK, |chunk, values| {
                values.iter_mut().enumerate().for_each(|(i, x)| *x = bf16::from_f32(value(chunk * CHUNK + i)));
            }),
        }
        if let Some(rounded) = self.rounded.as_ref().filter(|_| has_remainders) {
            pool.for_each_chunk(view::write::<bf16>(rounded), CHUNK, |chunk, rounded| {
                rounded.iter_mut().enumerate().for_each(|(i, x)| *x = split_master(value(chunk * CHUNK + i)).0);
            });
        } else if let Some(rounded) = &self.rounded {
            let values = view::read::<f32>(&self.output);
            pool.for_each_chunk(view::write::<bf16>(rounded), CHUNK, |chunk, rounded| {
                rounded.iter_mut().zip(&values[chunk * CHUNK..]).for_each(|(rounded, x)| *rounded = bf16::from_f32(*x));
            });
        }
    }
}
