//! Arrays to and from a reference in PyTorch, and how far two of them are apart.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use safetensors::{Dtype, SafeTensors, tensor::TensorView};

/// Named arrays as bytes, to be written to a safetensors file.
#[derive(Default)]
pub struct Arrays(Vec<(String, Dtype, Vec<usize>, Vec<u8>)>);

impl Arrays {
    pub fn f32(&mut self, name: String, shape: &[usize], values: &[f32]) {
        let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.0.push((name, Dtype::F32, shape.to_vec(), bytes));
    }

    #[allow(dead_code)]
    pub fn i32(&mut self, name: String, shape: &[usize], values: &[i32]) {
        let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.0.push((name, Dtype::I32, shape.to_vec(), bytes));
    }

    fn write(&self, path: &Path) {
        let views = self
            .0
            .iter()
            .map(|(name, dtype, shape, bytes)| (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
        safetensors::serialize_to_file(views, None, path).unwrap();
    }
}

/// All arrays of a safetensors file as f64.
fn read(path: &Path) -> HashMap<String, Vec<f64>> {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let values = |view: &TensorView<'_>| match view.dtype() {
        Dtype::F64 => view.data().chunks(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect(),
        _ => view.data().chunks(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect::<Vec<f64>>(),
    };
    file.tensors().iter().map(|(name, view)| (name.clone(), values(view))).collect()
}

/// The command that runs a script of Python, and a name for it.
fn python() -> (Command, PathBuf) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let python = std::env::var_os("PARITY_PYTHON").map_or_else(|| root.join(".venv/bin/python"), PathBuf::from);
    let mut command = Command::new(&python);
    command.args(["-E", "-S"]).arg(root.join("tests/warm.py"));
    (command, python)
}

/// The results of a script of `engine/tests/parity` for a case and its arrays.
pub fn reference(script: &str, name: &str, case: &serde_json::Value, arrays: &Arrays) -> HashMap<String, Vec<f64>> {
    let folder = std::env::temp_dir().join(format!("parity-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let files = ["case.json", "in.safetensors", "out.safetensors"].map(|name| folder.join(name));
    std::fs::write(&files[0], case.to_string()).unwrap();
    arrays.write(&files[1]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parity").join(script);
    let (mut command, python) = python();
    let output = command.arg(script).args(&files).output();
    let output = output.unwrap_or_else(|e| panic!("{} cannot be started ({e}): run `./x test`", python.display()));
    assert!(output.status.success(), "the reference failed: {}", String::from_utf8_lossy(&output.stderr));
    let theirs = read(&files[2]);
    std::fs::remove_dir_all(&folder).unwrap();
    theirs
}

/// The norm of the difference over the norm of `theirs`.
pub fn relative_l2(ours: &[f64], theirs: &[f64]) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>();
    let difference = square(&mut ours.iter().zip(theirs).map(|(a, b)| a - b));
    (difference / square(&mut theirs.iter().copied()).max(1e-300)).sqrt()
}
