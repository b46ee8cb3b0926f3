//! The settings of a Slurm job, checked.

use common::UserError;
use launch::{Container, ContainerRuntime, Slurm, Starter};

use super::command::{SlurmFlags, check_letters};

/// Options of sbatch that the run depends on, and the flag that sets each.
const OWN: &[(&[&str], &str)] = &[
    (&["--nodes", "-N"], "--nodes"),
    (&["--ntasks", "-n", "--ntasks-per-node"], "--ranks-per-node"),
    (&["--cpus-per-task", "-c"], "--cpus-per-task"),
    (&["--time", "-t"], "--time"),
    (&["--signal"], "--notice-seconds"),
];

/// The settings that the flags ask for.
///
/// # Errors
/// A setting that Slurm would refuse, or that would change the script's meaning.
pub(super) fn settings(flags: &SlurmFlags) -> Result<Slurm, UserError> {
    check_time(&flags.time, flags.nodes.notice_seconds as u64)?;
    for (name, value) in [("partition", &flags.partition), ("account", &flags.account), ("qos", &flags.qos)] {
        value.iter().try_for_each(|value| check_letters(name, value, "-_.,"))?;
    }
    flags.sbatch.iter().try_for_each(|option| check_option(option))?;
    check_setup(&flags.machines.setup)?;
    let container = container(flags)?;
    let SlurmFlags { time, partition, account, qos, cpus_per_task, exclusive, starter, .. } = flags.clone();
    let (more, setup) = (flags.sbatch.clone(), flags.machines.setup.clone());
    Ok(Slurm { time, partition, account, qos, cpus_per_task, exclusive, more, setup, starter, container })
}

fn check_time(time: &str, notice: u64) -> Result<(), UserError> {
    let Some(limit) = seconds(time) else {
        return Err(UserError::new(
            format!("--time {time}"),
            format!("it has one of Slurm's forms: {FORMS}"),
            "for example --time 24:00:00",
        ));
    };
    // Slurm takes 0 for no limit.
    if limit > 0 && limit <= notice {
        return Err(UserError::new(
            format!("--time {time} with --notice-seconds {notice}"),
            format!("the run is asked to end {notice} s before its time is over, so it needs more than that"),
            "set a longer --time, or fewer --notice-seconds",
        ));
    }
    Ok(())
}

/// Fails unless the option is a single option that the script can hold in a separate line.
fn check_option(option: &str) -> Result<(), UserError> {
    let wrong = |rule: &str, fix: String| Err(UserError::new(format!("--sbatch {option}"), rule, fix));
    if !option.starts_with('-') || option.contains(|letter: char| letter.is_control() || letter == '#') {
        let rule = "it is an option of sbatch in one line, without #";
        return wrong(rule, "for example --sbatch --constraint=h100".into());
    }
    let name = option.split(['=', ' ']).next().unwrap_or_default();
    match OWN.iter().find(|(names, _)| names.contains(&name)) {
        Some((_, flag)) => wrong("the run is planned with it", format!("use {flag} of trainer job")),
        None => Ok(()),
    }
}

/// Fails on a line of `--setup` that is not a whole command, and so would change the meaning of the lines after.
pub(super) fn check_setup(lines: &[String]) -> Result<(), UserError> {
    let whole = |line: &&String| !line.contains(char::is_control) && shlex::split(line).is_some();
    match lines.iter().find(|line| !whole(line)) {
        Some(line) => Err(UserError::new(
            format!("--setup {}", line.escape_debug()),
            "it is a command in one line, with closed quotes and no backslash at its end",
            "write several lines with a --setup each, or call a script: --setup \"source setup.sh\"",
        )),
        None => Ok(()),
    }
}

fn container(flags: &SlurmFlags) -> Result<Option<Container>, UserError> {
    let SlurmFlags { container_mounts: folders, container_image, apptainer, starter, .. } = flags;
    let pyxis = container_image.clone().map(|image| (ContainerRuntime::Pyxis, image));
    let apptainer = || apptainer.clone().map(|image| (ContainerRuntime::Apptainer, image));
    let Some((runtime, image)) = pyxis.or_else(apptainer) else {
        let rule = "it says what containers see, and the ranks run in none";
        return match folders.first() {
            Some(folder) => Err(UserError::new(
                format!("--container-mounts {folder}"),
                rule,
                "add --container-image or --apptainer, or leave it out",
            )),
            None => Ok(None),
        };
    };
    if runtime == ContainerRuntime::Pyxis && *starter == Starter::Mpirun {
        return Err(UserError::new(
            format!("--container-image {image} with --starter mpirun"),
            "Pyxis is a part of srun",
            "add --starter srun, or use --apptainer",
        ));
    }
    match folders.iter().find(|folder| !folder.starts_with('/') || folder.contains(':')) {
        Some(folder) => Err(UserError::new(
            format!("--container-mounts {folder}"),
            "it is an absolute path, the same inside and outside: the supervisor, outside, looks for the checkpoints",
            "name the folder alone, such as --container-mounts /scratch",
        )),
        None => Ok(Some(Container { runtime, image, folders: folders.clone() })),
    }
}

/// The forms of a time in Slurm's manual.
const FORMS: &str = "minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, \
                                days-hours:minutes:seconds";

/// The seconds of a time in one of the [`FORMS`]. `None` for other text.
fn seconds(time: &str) -> Option<u64> {
    let numbers = |text: &str| -> Option<Vec<u64>> {
        // `parse` would take a sign.
        let number = |part: &str| part.parse().ok().filter(|_| part.bytes().all(|digit| digit.is_ascii_digit()));
        text.split(':').map(number).collect()
    };
    let [days, hours, minutes, seconds] = match time.split_once('-') {
        Some((days, rest)) => match (&numbers(days)?[..], &numbers(rest)?[..]) {
            (&[days], &[hours]) => [days, hours, 0, 0],
            (&[days], &[hours, minutes]) => [days, hours, minutes, 0],
            (&[days], &[hours, minutes, seconds]) => [days, hours, minutes, seconds],
            _ => return None,
        },
        None => match numbers(time)?[..] {
            [minutes] => [0, 0, minutes, 0],
            [minutes, seconds] => [0, 0, minutes, seconds],
            [hours, minutes, seconds] => [0, hours, minutes, seconds],
            _ => return None,
        },
    };
    let units = [(days, 86_400), (hours, 3600), (minutes, 60), (seconds, 1)];
    units.iter().try_fold(0u64, |sum, (number, unit)| sum.checked_add(number.checked_mul(*unit)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_limit_is_longer_than_the_notice_or_none() {
        assert!(check_time("00:05:01", 300).is_ok() && check_time("0", 300).is_ok());
        for time in ["5", "00:05:00", "4:59"] {
            let error = check_time(time, 300).unwrap_err().to_string();
            assert!(error.contains(&format!("--time {time} with --notice-seconds 300")), "{error}");
        }
        assert!(check_time("1h", 300).unwrap_err().to_string().contains("days-hours:minutes"));
    }

    #[test]
    fn options_of_sbatch_are_one_line_and_leave_the_plan_alone() {
        for option in ["--constraint=h100", "-C h100", "--mail-type END", "--gres=gpu:8"] {
            assert!(check_option(option).is_ok(), "{option}");
        }
        for option in ["h100", "--comment=a\nrm -rf b", "--comment=a #b", "--nodes=3", "-t 5", "--signal=TERM"] {
            assert!(check_option(option).is_err(), "{option}");
        }
    }

    #[test]
    fn slurms_forms_of_a_time_are_read_and_no_others() {
        for (time, expected) in [
            ("90", 5400),
            ("1:30", 90),
            ("24:00:00", 86_400),
            ("2-3", 183_600),
            ("2-3:04", 183_840),
            ("2-03:04:05", 183_845),
            ("0", 0),
        ] {
            assert_eq!(seconds(time), Some(expected), "{time}");
        }
        for time in ["", "1h", "1:2:3:4", "1-", "-1", "1-2-3", "+5", "1-2:3:4:5", "1:2-3", "99999999999999999999"] {
            assert_eq!(seconds(time), None, "{time}");
        }
    }
}
