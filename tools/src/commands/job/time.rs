//! Slurm's form of a time.

/// The forms, as Slurm's manual names them.
pub(super) const FORMS: &str = "minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, \
                                days-hours:minutes:seconds";

/// The seconds of a time in one of the [`FORMS`]. `None` for other text.
pub(super) fn seconds(time: &str) -> Option<u64> {
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
