//! The rows as a Markdown table.

use crate::guest::Row;
use crate::machine::PICTURES;

const HEAD: &str = "\
| mount | trouble | planned | delivered | replaced | reported | recovered | seconds | longest wait | readers killed | exit | verdict |
|---|---|---|---|---|---|---|---|---|---|---|---|
";

pub(crate) fn write(rows: &[Row]) -> String {
    let mut text = format!(
        "# NFS\n\n\
         What the loader makes of a real NFS mount that fails: {PICTURES} pictures, two epochs in batches of 8 with four I/O\n\
         threads and `on_error=\"replace\"`, on a User-Mode Linux kernel that is server and client at once. Written by\n\
         `make test-nfs`; [tests/nfs](../tests/nfs/README.md) tells how it works and what is checked in every row.\n\n\
         The trouble begins in the middle of the first epoch. Hard mounts have the kernel's own settings, soft ones\n\
         `timeo=7,retrans=2`. Planned = delivered + replaced (nothing is skipped), and the pixels that were handed over are\n\
         those of the same files on a local disk. Where the link is lost for good, the run ends with an error after four\n\
         deadlines. Where the loop is left, or the process is ended by a signal (and can tell nothing more), that is while\n\
         the link is down. `exit` is the time until the process was reaped and none of its readers was alive.\n\n{HEAD}"
    );
    for row in rows {
        text += &line(row);
    }
    text
}

fn line(row: &Row) -> String {
    let number = |value: Option<u64>| value.map_or("".to_owned(), |value| value.to_string());
    let seconds = |value: Option<f64>, digits| value.map_or("".to_owned(), |value| format!("{value:.digits$} s"));
    let codes: Vec<_> = row.codes.iter().map(|(code, count)| format!("`{code}` {count}")).collect();
    let verdict =
        if row.problems.is_empty() { "kept".to_owned() } else { format!("**broken**: {}", row.problems.join("; ")) };
    let cells = [
        row.mount.clone(),
        row.trouble.clone(),
        number(row.books.map(|books| books.planned)),
        number(row.books.map(|books| books.delivered)),
        number(row.books.map(|books| books.replaced)),
        codes.join(", "),
        number(row.books.map(|_| row.recovered)),
        seconds(row.seconds, 1),
        seconds(row.longest_wait_seconds, 1),
        number(row.books.map(|_| row.written_off)),
        seconds(row.exit_seconds, 2),
        verdict,
    ];
    format!("| {} |\n", cells.join(" | "))
}
