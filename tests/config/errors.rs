//! Wrong configs, and all that is said about each: the complete report, as an operator sees it.

mod agents;
mod foreign;
mod governing;
mod keys;
mod listener;
mod names;
mod replicas;
mod scans;
mod servers;
mod several;
mod syntax;
mod values;
mod variables;
