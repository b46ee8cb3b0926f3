//! The forms of master weights, and how master weights go to and from the device.

use device::ops::{join_master, split_master};
use device::{DType, Device, Result, Tensor, bf16};
use rayon::prelude::*;

/// The form of the master weights of weights in bf16. Other weights that are trained have f32 masters in either form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MasterForm {
    /// f32; weights are rounded to nearest even.
    #[default]
    Whole,
    /// The 16 bits that a weight lacks; weights are rounded with ties away from 0. See
    /// [`split_master`](device::ops::split_master).
    Remainder,
}

impl MasterForm {
    /// The type of masters of weights of that type.
    pub(super) fn of_weights(self, weights: DType) -> DType {
        if self == MasterForm::Remainder && weights == DType::Bf16 { DType::U16 } else { DType::F32 }
    }
}

/// The values of masters in any form, as f32; of a frozen parameter the weights. `weights` has the type that layers
/// read: remainders complete it.
///
/// # Errors
/// Errors of the device.
pub(super) fn download(device: &Device, masters: &Tensor, weights: Option<Tensor>) -> Result<Vec<f32>> {
    match (masters.dtype, weights) {
        (DType::U16, Some(weights)) => {
            let (weights, rest) = (device.download::<bf16>(&weights)?, device.download::<u16>(masters)?);
            Ok(weights.into_par_iter().zip(rest).map(|(weight, rest)| join_master(weight, rest)).collect())
        }
        (DType::Bf16, _) => Ok(device.download::<bf16>(masters)?.into_par_iter().map(bf16::to_f32).collect()),
        _ => device.download(masters),
    }
}

/// Weights rounded from `values`, whose masters have that type.
pub(super) fn rounded(values: &[f32], masters: DType) -> Vec<bf16> {
    match masters {
        DType::U16 => values.par_iter().map(|&x| split_master(x).0).collect(),
        _ => values.par_iter().map(|&x| bf16::from_f32(x)).collect(),
    }
}

/// Overwrites master weights, in the masters' form.
pub(super) fn upload_masters(device: &Device, masters: &Tensor, values: &[f32]) -> Result<()> {
    match masters.dtype {
        DType::U16 => device.upload(masters, &values.par_iter().map(|&x| split_master(x).1).collect::<Vec<u16>>()),
        _ => device.upload(masters, values),
    }
}

#[cfg(test)]
mod tests {
    use device::HostOptions;
    use parallel::{Axis, Connections, Mesh, MeshSizes, Placement, Ranks};

    use super::*;
    use crate::params::{Init, ParamSpec, Params};

    #[test]
    fn the_first_weights_of_a_replica_are_rounded_as_their_masters_are() {
        // Half way between two numbers of 16 bits, of which the lower one is even.
        let spec = ParamSpec {
            dtype: DType::Bf16,
            master_form: MasterForm::Remainder,
            ..ParamSpec::new("p", [512], Init::Constant(1.0 + 1.0 / 256.0), 0)
        };
        for rank in 0..2 {
            let mesh = Mesh::new(MeshSizes::of(2)).unwrap();
            let connections = Connections { groups: Vec::new(), ..Connections::new(mesh, Placement::new(1, 1)) };
            let ranks = Ranks::connect(&connections, rank, &mut |_, _| Ok(None)).unwrap();
            let device = Device::host(HostOptions::default()).unwrap();
            let rest = ranks.axes(Axis::Tokens);
            let params = Params::new(&device, vec![spec.clone()], Some(1), 0, ranks, rest).unwrap();
            let weights: Vec<bf16> = device.download(&params.get("p").weight).unwrap();
            // The other half is gathered from the other rank before it is read.
            let owned = &weights[rank * 256..(rank + 1) * 256];
            assert_eq!(owned, [bf16::from_f32(1.0 + 1.0 / 128.0); 256], "rank {rank}");
        }
    }
}
