//! A graph for each shape of input, within a bound: sequence buckets, or the last batch of an epoch that is not full.
//!
//!     cargo run --release -p graph-manager --example shapes            # a small network on the host
//!     cargo run --release -p graph-manager --example shapes -- cuda    # the whole one on a GPU

mod shared;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use device::cuda::CudaOptions;
use device::{Device, HostOptions, Tensor};
use graph_manager::{Capture, Pool, Result};
use shared::Mlp;

pub(crate) fn main() -> Result<()> {
    // The third shape of three forgets the oldest, with a warning that names the bound.
    tracing_subscriber::fmt().without_time().with_writer(std::io::stdout).init();
    let device = match std::env::args().nth(1).as_deref() {
        Some("cuda") => Device::cuda(CudaOptions { ordinal: 0, deterministic: true, tf32: false, check: false })?,
        _ => Device::host(HostOptions::default())?,
    };
    let mlp = Mlp::new(&device, 16, &[64, 32, 32, 16, 8])?;
    let (pool, network) = (Pool::new(mlp.compute.clone()), mlp.network.clone());
    let two = NonZeroUsize::MIN.saturating_add(1);
    let mut predict = Capture::new(&pool, "predict", 1, two, move |cx, input| network.predict(cx, input))?;
    let mut eager: BTreeMap<usize, Vec<f32>> = BTreeMap::new();
    for rows in [16, 12, 16, 16, 12, 12, 4, 4, 4, 16] {
        let input = Tensor { shape: [rows, 64].into(), ..mlp.input };
        let prediction: Vec<f32> = device.download(&*predict.run(input)?)?;
        assert_eq!(
            &prediction,
            eager.entry(rows).or_insert(prediction.clone()),
            "as the first, eager run of this shape"
        );
        println!("{rows:2} rows: {}", predict.report());
    }
    Ok(())
}
