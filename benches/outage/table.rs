//! What is printed.

use crate::run::{Lag, Run};

/// Prints the head of the table.
pub(crate) fn head() {
    println!(
        "| buffer | hook | resident after sync, MB | growth, MB: hang, 500, 429, good, end | other's lag, ms: p50 / p99 \
         | p99 by quarter | p99 to undisturbed | changes/s | CPU s | waited at most | refused requests | delivered \
         | merged | olds given up | dropped | duplicates | disordered | caught up in s | drained in s | disk MB \
         | objects + deletions | missing |"
    );
    println!("|{}", "---|".repeat(22));
}

/// Prints a run, compared with an undisturbed one.
#[expect(clippy::cast_precision_loss, reason = "figures of a table")]
pub(crate) fn line(run: &Run, undisturbed: Option<&Run>) {
    let mb = |bytes: u64| format!("{:.0}", bytes as f64 / 1e6);
    let ms = |micros: u64| format!("{:.1}", micros as f64 / 1e3);
    let ratio = |to: &Run| format!("{:.2}", run.lag.p99 as f64 / to.lag.p99 as f64);
    let cells = [
        if run.stored { "`[state] dir`" } else { "memory" }.to_owned(),
        if run.disturbed { "disturbed" } else { "good" }.to_owned(),
        mb(run.resident),
        run.growth.map(mb).join(", "),
        format!("{} / {}", ms(run.lag.median), ms(run.lag.p99)),
        run.lags.map(|Lag { p99, .. }| ms(p99)).join(", "),
        undisturbed.map_or("–".to_owned(), ratio),
        format!("{:.0}", run.rate),
        format!("{:.1}", run.cpu.as_secs_f64()),
        run.queued_peak.to_string(),
        format!("{} ({} attempts)", run.refused, run.retried),
        run.delivered.to_string(),
        run.coalesced.to_string(),
        run.olds_given_up.to_string(),
        run.dropped.to_string(),
        run.duplicates.to_string(),
        run.disordered.to_string(),
        if run.disturbed { format!("{:.1}", run.catch_up.as_secs_f64()) } else { "–".to_owned() },
        format!("{:.1}", run.drained.as_secs_f64()),
        mb(run.disk),
        format!("{} + {}", run.expected.0, run.expected.1),
        run.missing.to_string(),
    ];
    println!("| {} |", cells.join(" | "));
}
