//! The communicator over MPI, on real processes: this test binary starts itself again under mpirun.

mod common;

use std::process::Command;

use common::{assert_right, tensor};
use device::ops::CollectiveKind::AllReduceSum;
use device::{Shape, Tensor};
use parallel::{Grid, MpiWorld};

/// Run alone this is a world of one; the tests below run it under mpirun.
#[test]
fn every_kind_of_transfer_is_right_in_this_world_and_in_groups_of_it() {
    let world = MpiWorld::initialize().unwrap();
    let (first, second) = (world.communicator("first"), world.communicator("second"));
    assert_eq!((first.rank(), first.size()), (world.rank(), world.size()));
    assert_right(&*first);
    assert_right(&*second);
    let tensor_size = if world.size().is_multiple_of(2) { 2 } else { 1 };
    let grid = Grid::new(world.size(), tensor_size, 1).unwrap();
    let groups = [grid.tensor_group(world.rank()), grid.data_group(world.rank())];
    for members in groups {
        let group = world.split("group", &members);
        assert_eq!((group.size(), members[group.rank()]), (members.len(), world.rank()));
        assert_right(&*group);
    }

    let mut bytes = if world.rank() == 0 { *b"of rank 0" } else { [0; 9] };
    world.broadcast(0, &mut bytes);
    assert_eq!(&bytes, b"of rank 0");
    let texts = (0..world.size()).map(|rank| world.text_of(rank, format!("of {}", world.rank())));
    assert!(texts.enumerate().all(|(rank, text)| text == format!("of {rank}")));
    let mine = world.rank() as u64 + 10;
    assert_eq!((world.min(mine), world.max(mine)), (10, 9 + world.size() as u64));
    world.barrier();

    let large = Tensor { shape: Shape::new(&[1 << 31]), ..tensor(&mut [0.0_f32]) };
    let error = first.start(AllReduceSum, &large, &large).map(|_| ()).unwrap_err().to_string();
    assert!(error.starts_with("all_reduce on first: more than 2^31 elements"), "{error}");
    drop(world);
    println!("rank {} of {} is content", first.rank(), first.size());
}

fn assert_ranks_are_content(ranks: usize) {
    let mut command = Command::new("mpirun");
    // Root has to allow itself twice; for others the variables mean nothing.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.args(["--oversubscribe", "--bind-to", "none", "--timeout", "120", "-n", &ranks.to_string()]);
    command.arg(std::env::current_exe().unwrap());
    let test = "every_kind_of_transfer_is_right_in_this_world_and_in_groups_of_it";
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("mpirun does not start ({error}); `./x test` installs what the tests need"));
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}");
    for rank in 0..ranks {
        assert!(text.contains(&format!("rank {rank} of {ranks} is content")), "no word of rank {rank}: {text}");
    }
}

#[test]
fn three_processes_transfer_as_one_world() {
    assert_ranks_are_content(3);
}

#[test]
fn four_processes_transfer_as_one_world_and_as_two_by_two() {
    assert_ranks_are_content(4);
}
