//! From a graph to a plan that can be executed: heuristics, engine configurations, plans.

use cudarc::cudnn::sys::{
    cudnnBackendAttributeName_t as Attribute, cudnnBackendDescriptorType_t as DescriptorType, cudnnBackendHeurMode_t,
};

use super::descriptor::{CudnnHandle, Descriptor};
use super::graph::OperationGraph;
use crate::cuda::driver::RawStream;
use crate::{Error, Result};

/// A compiled plan, with the descriptors that it refers to.
pub(super) struct Plan {
    plan: Descriptor,
    /// Bytes of workspace that the plan needs.
    pub(super) workspace: usize,
    _configuration: Descriptor,
}

/// The plans of a graph, the most promising first.
pub(super) struct Plans {
    /// At least one.
    pub(super) plans: Vec<Plan>,
    _operation_graph: Descriptor,
    _graph: OperationGraph,
}

impl Plans {
    /// At most `most` plans. Each takes cuDNN up to a second to compile.
    ///
    /// # Errors
    /// No engine for the graph, or none that compiles.
    pub(super) fn new(graph: OperationGraph, handle: &CudnnHandle, most: usize) -> Result<Plans> {
        let operation_graph = Descriptor::new(DescriptorType::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?
            .descriptors(Attribute::CUDNN_ATTR_OPERATIONGRAPH_OPS, &graph.operations)?
            .handle(Attribute::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, handle)?
            .finalize()?;
        let heuristics = Descriptor::new(DescriptorType::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?
            .descriptor(Attribute::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &operation_graph)?
            .heuristic_mode(Attribute::CUDNN_ATTR_ENGINEHEUR_MODE, cudnnBackendHeurMode_t::CUDNN_HEUR_MODE_A)?
            .finalize()?;
        let configurations = heuristics
            .list(Attribute::CUDNN_ATTR_ENGINEHEUR_RESULTS, DescriptorType::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)?;
        let mut problem = match configurations.len() {
            0 => "no engine: either cuDNN has none, or it does not find libnvrtc and its builtins".to_string(),
            _ => String::new(),
        };
        let mut plans = Vec::new();
        for configuration in configurations {
            match Plan::new(configuration, handle) {
                Ok(plan) => plans.push(plan),
                Err(error) => problem = error.to_string(),
            }
            if plans.len() == most {
                break;
            }
        }
        if plans.is_empty() {
            return Err(Error::Driver { call: "cudnn", problem });
        }
        Ok(Plans { plans, _operation_graph: operation_graph, _graph: graph })
    }
}

impl Plan {
    fn new(configuration: Descriptor, handle: &CudnnHandle) -> Result<Plan> {
        let plan = Descriptor::new(DescriptorType::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?
            .descriptor(Attribute::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &configuration)?
            .handle(Attribute::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, handle)?
            .finalize()?;
        let workspace = plan.integer(Attribute::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)?.max(0) as usize;
        Ok(Plan { plan, workspace, _configuration: configuration })
    }

    /// Submits the plan, or records it while the stream captures. `pointers` are the numbers and addresses of tensors,
    /// `scalars` the numbers of host scalars and their values, f32 or i32, as bits.
    ///
    /// # Errors
    /// cuDNN's.
    pub(super) fn execute(
        &self,
        handle: &CudnnHandle,
        pointers: &[(i64, u64)],
        scalars: &[(i64, u32)],
        workspace: u64,
        stream: &RawStream,
    ) -> Result<()> {
        let on_host = scalars.iter().map(|(number, value)| (*number, std::ptr::from_ref(value) as u64));
        let (numbers, addresses): (Vec<i64>, Vec<u64>) = pointers.iter().copied().chain(on_host).unzip();
        let pack = Descriptor::new(DescriptorType::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?
            .pointers(Attribute::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, &addresses)?
            .integers(Attribute::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, &numbers)?
            .pointers(Attribute::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, &[workspace])?
            .finalize()?;
        handle.execute(&self.plan, &pack, stream)
    }
}
