//! The world and its communicators over MPI, on real processes: this test binary starts itself again under mpirun.

mod common;

use std::process::Command;

use common::{assert_right, tensor, values};
use device::ops::CollectiveKind::{AllReduceSum, Receive, Send};
use device::{Communicator, Shape, Tensor};
use parallel::{Axis, Mesh, MeshSizes, World};

#[test]
#[ignore = "what each rank does; the other tests run it under mpirun"]
fn rank() {
    let world = World::mpi().unwrap();
    assert!(std::panic::catch_unwind(World::mpi).is_err(), "MPI was initialised already");
    let (rank, size) = (world.rank(), world.size());

    let texts = (0..size).map(|sender| world.broadcast_text(sender, format!("of {rank}")));
    assert!(texts.enumerate().all(|(sender, text)| text == format!("of {sender}")));
    assert_eq!(world.broadcast_text(0, String::new()), "");
    let mine = rank as u64 + 10;
    assert_eq!((world.min(mine), world.max(mine)), (10, 9 + size as u64));
    assert_eq!(world.sum(1), size as u64);
    world.barrier();

    let all: Vec<usize> = (0..size).collect();
    let tensor = if size.is_multiple_of(2) { 2 } else { 1 };
    let mesh = Mesh::new(MeshSizes { tensor, ..MeshSizes::of(size) }).unwrap();
    let [tensor, data] = [Axis::Tensor, Axis::Data].map(|axis| mesh.members(rank, mesh.axes(axis)));
    for group in [&all, &all, &tensor, &data] {
        let communicator = world.host_communicator("group", group);
        assert_eq!(communicator.is_some(), group.len() > 1, "a group of one needs no communicator");
        let Some(communicator) = communicator else { continue };
        assert_eq!((communicator.size(), group[communicator.rank()]), (group.len(), rank));
        assert_right(&*communicator);
    }
    let last = world.host_communicator("last", &all);
    drop(world); // MPI keeps running until the last communicator is dropped
    if let Some(last) = &last {
        assert_problems_are_errors(&**last);
    }
    println!("rank {rank} of {size} is content");
}

/// Fails unless tensors that are too long, and messages of different lengths, are errors that say so.
fn assert_problems_are_errors(group: &dyn Communicator) {
    let large = Tensor { shape: Shape::new(&[1 << 31]), ..tensor(&mut [0.0_f32]) };
    let error = group.start(AllReduceSum, &large, &large).map(|_| ()).unwrap_err().to_string();
    assert!(error.starts_with("all_reduce on last: more than 2^31 elements"), "{error}");

    let (rank, size) = (group.rank(), group.size());
    let (mut long, mut short) = (values::<f32>(rank, 0, 4), [0.0_f32; 2]);
    let (sent, received) = (tensor(&mut long), tensor(&mut short));
    let send = group.start(Send { to: (rank + 1) % size }, &sent, &sent).unwrap();
    let receive = group.start(Receive { from: (rank + size - 1) % size }, &received, &received).unwrap();
    let error = receive.wait().unwrap_err().to_string();
    assert!(error.starts_with("receive on last: ") && error.contains("truncate"), "{error}");
    send.wait().unwrap();
}

/// Runs [`rank`] on processes of mpirun, with a folder of its own for MPI's files.
fn assert_ranks_are_content(ranks: usize) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("mpirun");
    // Root has to confirm; for other users the variables have no meaning.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1").env("TMPDIR", folder.path());
    command.args(["--oversubscribe", "--bind-to", "none", "-n", &ranks.to_string()]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", "rank", "--ignored", "--nocapture", "--test-threads=1"]);
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
fn processes_transfer_as_one_world_and_four_as_two_by_two_too_and_sum_in_one_order() {
    [1, 3, 4, 5].into_iter().for_each(assert_ranks_are_content);
}
