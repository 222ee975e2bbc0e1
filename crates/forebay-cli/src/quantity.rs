//! Numbers with units, as arguments have them.

/// A number of bytes such as `256MiB`, `1.5 GB` or `1000`.
pub(crate) fn bytes(text: &str) -> Option<u64> {
    let split = text.find(|letter: char| letter.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor = match unit {
        "" | "B" => 1.0,
        "kB" | "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "GiB" => 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    let bytes = number.trim().parse::<f64>().ok()? * factor;
    (1.0..1e15).contains(&bytes).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn numbers_have_the_units_of_the_field() {
        for (text, expected) in [("1000", 1000), ("64KiB", 65_536), ("1.5GiB", 1_610_612_736), ("800 kB", 800_000)] {
            assert_eq!(bytes(text), Some(expected), "{text}");
        }
        for text in ["", "much", "0", "-1MB", "50Mbit", "1e99", "1TiBi"] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }
}
