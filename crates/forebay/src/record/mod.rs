//! What happened in a run: the ledger of failures, where each delivered sample came from, the report, the statistics.

pub(crate) mod account;
pub(crate) mod journal;
pub(crate) mod ledger_writer;
pub(crate) mod provenance;
pub(crate) mod report;
pub(crate) mod stats;
