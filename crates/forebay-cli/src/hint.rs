//! Hints in the words of the command line: settings are arguments of the command.

use forebay::{Setting, neutral};

/// Settings that a command takes, and its argument.
const ARGUMENTS: &[(&str, &str)] = &[
    ("allow_empty", "--allow-empty"),
    ("dry_run", "--dry-run"),
    ("extensions", "--extension"),
    ("ledger", "--ledger"),
    ("max_delete", "--max-delete"),
    ("max_failures", "--max-failures"),
    ("root", "--root"),
    ("storage_options", "--storage-option"),
];

/// A setting as an argument: --allow-empty, --storage-option profile=…. What no command takes is said to be Python's.
pub(crate) fn argument(setting: Setting<'_>) -> String {
    let Setting { name, key, value } = setting;
    let Some((_, argument)) = ARGUMENTS.iter().find(|(known, _)| *known == name) else {
        return format!("{} (in Python)", neutral(setting));
    };
    match (key, value) {
        (Some(key), value) => format!("{argument} {key}={}", value.unwrap_or("…")),
        (None, None | Some("true")) => (*argument).to_owned(),
        (None, Some(value)) => format!("{argument} {value}"),
    }
}

/// Like [`argument`], for an error of a mirror's target, whose store has options of its own.
pub(crate) fn target_argument(setting: Setting<'_>) -> String {
    let said = argument(setting);
    said.strip_prefix("--storage-option").map(|rest| format!("--target-option{rest}")).unwrap_or(said)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay::{Error, REGISTRY, SETTINGS};

    #[test]
    fn hints_name_arguments_of_the_command() {
        for (hint, expected) in [
            ("pass `allow_empty=true`", "pass --allow-empty"),
            ("name others with `extensions`", "name others with --extension"),
            ("`storage_options.profile=…` or `storage_options`", "--storage-option profile=… or --storage-option"),
            ("raise `storage_options.timeout`", "raise --storage-option timeout=…"),
            ("raise `max_delete`; `dmesg`", "raise --max-delete; `dmesg`"),
            (
                "raise `retries`, or `isolate=\"never\"`",
                "raise `retries` (in Python), or `isolate=\"never\"` (in Python)",
            ),
        ] {
            assert_eq!(Error::config("x").with_hint(hint).hint_in(argument), expected);
        }
    }

    #[test]
    fn hints_about_a_mirrors_target_name_its_own_option() {
        for (hint, expected) in [
            ("`storage_options.profile=…` or `storage_options`", "--target-option profile=… or --target-option"),
            ("raise `max_delete`", "raise --max-delete"),
        ] {
            assert_eq!(Error::config("x").with_hint(hint).hint_in(target_argument), expected);
        }
        assert!(crate::command::long_arguments().iter().any(|taken| *taken == "target-option"));
    }

    #[test]
    fn every_argument_is_one_of_a_command_and_stands_for_a_known_setting() {
        let taken = crate::command::long_arguments();
        for (name, argument) in ARGUMENTS {
            assert!(SETTINGS.contains(name), "no hint names {name}");
            assert!(
                taken.iter().any(|taken| argument.strip_prefix("--") == Some(taken)),
                "no command takes {argument}"
            );
        }
        for row in REGISTRY {
            let said = Error::new(row.kind, "x").hint_in(argument);
            assert!(!SETTINGS.iter().any(|name| said.ends_with(&format!("`{name}`"))), "{said}");
        }
    }
}
