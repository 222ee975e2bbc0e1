//! The `forebay` command.

fn main() -> std::process::ExitCode {
    std::process::ExitCode::from(forebay_cli::main(std::env::args_os().skip(1)))
}
