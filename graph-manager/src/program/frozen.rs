//! Whether a step's code would now make another list.

use crate::words::counted;
use device::ops::When;
use device::{BufferId, CheckError, Op, Tensor};

use super::body::{Body, Entry, Item, Work};
use super::data::{Held, NONE, OUTSIDE, Program};
use crate::error::Error;

/// The first change between a list and the one that the code of the step makes now.
enum Change {
    /// Another region comes next.
    Order { position: usize, expected: String, actual: String },
    /// A region does something else.
    Region { region: String, problem: String },
}

/// Fails if two lists of a step are not the same.
///
/// # Errors
/// [`Error::Frozen`]; an out-of-order error.
pub(crate) fn refuse_change<R: Copy + Eq + std::hash::Hash + std::fmt::Display>(
    was: &Program<R>,
    is: &Program<R>,
) -> crate::error::Result<()> {
    match first_change(was, is) {
        None => Ok(()),
        Some(Change::Region { region, problem }) => Err(Error::Frozen { region, problem }),
        Some(Change::Order { position, expected, actual }) => {
            Err(device::Error::from(CheckError::OutOfOrder { position, expected, actual }).into())
        }
    }
}

/// Stands for a region that is not there.
const END: &str = "the end of the step";

/// The first change between two lists of a step.
fn first_change<R: Copy + Eq + std::hash::Hash + std::fmt::Display>(
    was: &Program<R>,
    is: &Program<R>,
) -> Option<Change> {
    let mut pairs = was.visits.iter().map(Some).chain([None]).zip(is.visits.iter().map(Some).chain([None]));
    let other = pairs.position(|(was, is)| was.map(|was| was.region) != is.map(|is| is.region));
    if let Some(position) = other {
        let name =
            |program: &Program<R>| program.visits.get(position).map_or(END.into(), |visit| visit.name.to_string());
        return Some(Change::Order { position, expected: name(was), actual: name(is) });
    }
    let outermost = (NONE, was.outermost, is.outermost);
    let visits = (0..).zip(was.visits.iter().zip(&is.visits)).map(|(at, (was, is))| (at, was.held, is.held));
    [outermost].into_iter().chain(visits).find_map(|(visit, old, new)| {
        let problem = in_region((was, old), (is, new))?;
        let region =
            was.visits.get(visit as usize).map_or(crate::error::OUTSIDE.into(), |visit| visit.name.to_string());
        Some(Change::Region { region, problem })
    })
}

/// The first difference in a region's own submissions.
fn in_region<R: Copy + Eq + std::hash::Hash + std::fmt::Display>(
    was: (&Program<R>, Held),
    is: (&Program<R>, Held),
) -> Option<String> {
    let [old, new] = [was, is].map(|(program, held)| &program.bodies[held.body as usize]);
    let buffers = |body: &Body| body.own.iter().map(|own| (own.name, own.bytes)).collect::<Vec<_>>();
    let (taken, takes) = (buffers(old), buffers(new));
    if let Some(at) = (0..taken.len().max(takes.len())).find(|at| taken.get(*at) != takes.get(*at)) {
        let named = |buffer: Option<&(&str, usize)>| {
            buffer.map_or("no more".to_string(), |(name, bytes)| format!("`{name}` of {bytes} bytes"))
        };
        let (was, is) = (named(taken.get(at)), named(takes.get(at)));
        return Some(format!("it took {was} when recorded, the code now takes {is}"));
    }
    let entries = |items: &[Item]| -> usize { items.iter().filter(|item| matches!(item, Item::Entry(_))).count() };
    let mut at = 0;
    for (old, new) in old.items.iter().zip(&new.items) {
        match (old, new) {
            (Item::Inner, Item::Inner) => {}
            (Item::Entry(old), Item::Entry(new)) => {
                let problem = in_entry((was.0, was.1, old), (is.0, is.1, new));
                if let Some((name, problem)) = problem {
                    return Some(format!("operation {at}{name} {problem}"));
                }
                at += 1;
            }
            (Item::Join { by, of }, Item::Join { by: now_by, of: now_of }) if (by, of) == (now_by, now_of) => {}
            _ => return Some(format!("before operation {at} the code now waits for others")),
        }
    }
    let (was, is) = (entries(&old.items), entries(&new.items));
    let was_some = counted(was, "operation");
    (was != is || old.items.len() != new.items.len())
        .then(|| format!("it had {was_some} when recorded, the code now submits {is}: a branch has changed"))
}

/// An entry, with the entry's visit and program.
type Listed<'p, R> = (&'p Program<R>, Held, &'p Entry);

/// The difference between two entries, with the entries' name if both have the same.
fn in_entry<R: Copy + Eq + std::hash::Hash + std::fmt::Display>(
    (was, was_held, old): Listed<'_, R>,
    (is, is_held, new): Listed<'_, R>,
) -> Option<(String, String)> {
    let name = |entry: &Entry| match &entry.work {
        Work::Op(op) => op.name(),
        Work::Host(call) => call.name,
    };
    let (old_name, new_name) = (name(old), name(new));
    if old_name != new_name {
        let problem =
            format!("was `{old_name}` when recorded, the code now submits `{new_name}`: a branch has changed");
        return Some((String::new(), problem));
    }
    let named = |problem: String| Some((format!(", `{old_name}`:"), problem));
    if let (Work::Op(old), Work::Op(new)) = (&old.work, &new.work) {
        let (old, new) = (by_number(was, was_held.table, old), by_number(is, is_held.table, new));
        if old != new {
            let (old, new) = (text(&old), text(&new));
            if old != new {
                return named(first_field(&old, &new));
            }
        }
    }
    if used(was, was_held, old) != used(is, is_held, new) {
        return named("it reads or writes other memory than when recorded".into());
    }
    match (old.early, new.early) {
        (true, false) => return named("only the first steps did it when recorded, now all do".into()),
        (false, true) => return named("all steps did it when recorded, now only the first do".into()),
        _ => {}
    }
    let same = (old.queue, old.placed) == (new.queue, new.placed);
    if same { None } else { named("it is on another stream or waits for others".into()) }
}

/// The bytes that an entry reads or writes, of buffers that two recordings of one step have in common.
fn used<R: Copy + Eq + std::hash::Hash + std::fmt::Display>(
    program: &Program<R>,
    Held { body, table }: Held,
    entry: &Entry,
) -> Vec<(Result<u32, BufferId>, bool, u64, u64)> {
    let Body { uses, .. } = &program.bodies[body as usize];
    let of = |index: u32| match Program::<R>::is_taken(index) {
        true => Ok(index),
        false => Err(program.outside[(index & !OUTSIDE) as usize]),
    };
    let uses = uses[entry.uses.start as usize..entry.uses.end as usize].iter();
    uses.map(|each| (of(program.tables[(table + each.local) as usize]), each.writes, each.start, each.end)).collect()
}

/// An operation with numbers for buffers. Two recordings of one step have the same numbers.
fn by_number<R: Copy + Eq + std::hash::Hash + std::fmt::Display>(program: &Program<R>, table: u32, op: &Op) -> Op {
    op.clone().map(|tensor| match program.meant(table, &tensor) {
        Some(index) => Tensor { buffer: BufferId::placeholder(index as u32), ..tensor },
        None => tensor,
    })
}

/// An operation in words, with a field a line. For a caller's own operation, also in a body of `when`, the tensors as
/// declared are left out: they have other addresses in each recording, and the placed tensors identify them.
pub(super) fn text(op: &Op) -> String {
    match op {
        Op::When(When { flag, body, own }) => {
            let body: Vec<String> = body.iter().map(text).collect();
            format!("flag: {flag:#?}\nown: {own:#?}\nbody: [\n{}\n]", body.join("\n"))
        }
        Op::Custom(_) => without_declared(&format!("{op:#?}")),
        _ => format!("{op:#?}"),
    }
}

/// The text of a caller's own operation without the tensors as declared.
fn without_declared(text: &str) -> String {
    let placed = text.rfind("placed: ").unwrap_or(text.len());
    let (own, placed) = text.split_at(placed);
    let (mut kept, mut skip) = (String::new(), 0);
    for line in own.lines() {
        let field = line.trim_start();
        if field.starts_with("buffer: BufferId(") {
            skip = 3;
        } else if field.starts_with("address: ") {
            skip = 1;
        }
        if skip == 0 {
            kept.push_str(line);
            kept.push('\n');
        }
        skip = usize::saturating_sub(skip, 1);
    }
    kept + placed
}

/// The first line that differs between two values printed with a field a line.
fn first_field(was: &str, is: &str) -> String {
    let mut lines = was.lines().zip(is.lines()).map(|(was, is)| (was.trim(), is.trim()));
    let Some((was, is)) = lines.find(|(was, is)| was != is) else { return "it has another number of fields".into() };
    match (was.trim_end_matches(',').split_once(": "), is.trim_end_matches(',').split_once(": ")) {
        (Some((field, was)), Some((_, is))) => format!("`{field}` was {was} when recorded and is now {is}"),
        _ => format!("`{was}` when recorded is now `{is}`"),
    }
}
