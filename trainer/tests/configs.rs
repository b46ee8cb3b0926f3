//! The recipes in `configs/` are ones a run can be planned from.

use trainer::config::Layers;
use trainer::plan::RunPlan;

#[test]
fn every_recipe_resolves_to_a_plan_with_graphs_on() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("configs");
    let mut recipes = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let mut layers = Layers::default();
        layers.read_file(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let plan = RunPlan::new(layers.resolve(), 2).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(plan.graphs.enable && plan.parameters > 100_000, "{}", path.display());
        recipes += 1;
    }
    assert!(recipes >= 2);
}

#[test]
fn gpt2_124m_has_the_parameters_of_gpt_2() {
    let mut layers = Layers::default();
    layers.set("model.preset", "gpt2-124m", "test").unwrap();
    assert_eq!(RunPlan::new(layers.resolve(), 1).unwrap().parameters, 124_439_808);
}

#[test]
fn later_layers_override_earlier_ones_and_a_preset_only_defaults() {
    let mut layers = Layers::default();
    layers.read_text("[model]\npreset = \"gpt2-124m\"\nlayers = 3\n[train]\nsteps = 5", "test").unwrap();
    layers.set("train.steps", "7", "--set").unwrap();
    let config = layers.resolve();
    assert_eq!((config.model.layers, config.model.hidden, config.train.steps), (3, 768, 7));
}
