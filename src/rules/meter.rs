//! Limits of an evaluation: steps, which are the same on every machine, and CPU time.
//!
//! The crate `cel` has no limit and no hook for one. Therefore [`instrument`] adds the variable `STEP` to every loop of the
//! expression. Each iteration reads the variable, and the resolver of variables counts the reads.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use cel::{
    IdedExpr,
    common::ast::{CallExpr, ComprehensionExpr, Expr, LiteralValue, operators},
};

use super::{
    MATCHES,
    limits::{RuleLimits, cpu_time},
    reads::children,
};

/// Variable that counts an iteration; its name is not valid in an expression.
pub(super) const STEP: &str = "@step";

/// Number of iterations between two reads of the CPU time.
const CPU_EVERY: u64 = 32;

/// Steps for each pattern that an iteration compiles.
const COMPILE_STEPS: u64 = 1000;

/// Counts of expensive calls in the macros of an expression. An iteration is one step, plus further steps for each of these calls.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weight {
    /// Calls that read a text.
    scans: u64,
    /// Calls that split a text into a list.
    splits: u64,
    /// Calls that compile a pattern.
    compiles: u64,
}

impl Weight {
    /// Returns the steps of an iteration; `bytes` is the size of the object and its previous state together.
    pub(super) fn steps(self, bytes: usize) -> u64 {
        let bytes = bytes as u64;
        1 + self.scans * (bytes >> 12) + self.splits * (bytes >> 5) + self.compiles * COMPILE_STEPS
    }

    fn add(&mut self, expression: &IdedExpr) {
        if let Expr::Call(call) = &expression.expr {
            match call.func_name.as_str() {
                "split" => self.splits += 1,
                MATCHES if !is_literal(call.args.last()) => self.compiles += 1,
                name if reads_little(name, &call.args) => {}
                _ => self.scans += 1,
            }
        }
        for child in children(expression) {
            self.add(child);
        }
    }
}

fn is_literal(expression: Option<&IdedExpr>) -> bool {
    expression.is_some_and(|expression| matches!(expression.expr, Expr::Literal(_)))
}

/// Returns true if the work of a call does not grow with the object: it is a simple operator, or compares with a literal.
fn reads_little(name: &str, args: &[IdedExpr]) -> bool {
    let has_literal = || args.iter().any(|arg| is_literal(Some(arg)));
    match name {
        operators::LOGICAL_AND
        | operators::LOGICAL_OR
        | operators::LOGICAL_NOT
        | operators::CONDITIONAL
        | operators::INDEX
        | operators::ADD
        | "@not_strictly_false"
        | "size" => true,
        operators::EQUALS
        | operators::NOT_EQUALS
        | operators::LESS
        | operators::LESS_EQUALS
        | operators::GREATER
        | operators::GREATER_EQUALS
        | "startsWith"
        | "endsWith" => has_literal(),
        _ => false,
    }
}

/// Makes each iteration of each macro read [`STEP`]. Returns the expensive calls in the macros, or `None` without a macro.
pub(super) fn instrument(expression: &mut IdedExpr) -> Option<Weight> {
    let mut weight = None;
    visit(expression, &mut weight);
    weight
}

fn visit(expression: &mut IdedExpr, weight: &mut Option<Weight>) {
    match &mut expression.expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) => {}
        Expr::Call(call) => {
            call.target.iter_mut().for_each(|target| visit(target, weight));
            call.args.iter_mut().for_each(|arg| visit(arg, weight));
        }
        Expr::List(list) => list.elements.iter_mut().for_each(|element| visit(element, weight)),
        Expr::Select(select) => visit(&mut select.operand, weight),
        Expr::Map(map) => {
            for entry in &mut map.entries {
                if let cel::common::ast::EntryExpr::MapEntry(entry) = &mut entry.expr {
                    visit(&mut entry.key, weight);
                    visit(&mut entry.value, weight);
                }
            }
        }
        Expr::Comprehension(all) => {
            let of_all = weight.get_or_insert_default();
            of_all.add(&all.loop_cond);
            of_all.add(&all.loop_step);
            for part in [&mut all.iter_range, &mut all.accu_init, &mut all.loop_cond, &mut all.loop_step] {
                visit(part, weight);
            }
            visit(&mut all.result, weight);
            count_iterations(all);
        }
    }
}

/// Adds [`STEP`] to the condition of a loop, which every iteration evaluates. If the condition is a literal, the crate `cel` builds
/// the list of `map` and `filter` in place. The condition must then stay a literal, so [`STEP`] is added to the loop's body.
fn count_iterations(all: &mut ComprehensionExpr) {
    if !matches!(all.loop_cond.expr, Expr::Literal(_)) {
        return guard(&mut all.loop_cond);
    }
    let Expr::Call(step) = &mut all.loop_step.expr else { return guard(&mut all.loop_step) };
    if step.func_name == operators::CONDITIONAL {
        return step.args.first_mut().map_or((), guard);
    }
    match step.args.last_mut().map(|items| &mut items.expr) {
        Some(Expr::List(items)) if step.func_name == operators::ADD => items.elements.first_mut().map_or((), guard),
        _ => guard(&mut all.loop_step),
    }
}

/// Replaces `x` by `STEP ? x : false`.
fn guard(expression: &mut IdedExpr) {
    let id = expression.id;
    let guarded = std::mem::take(expression);
    let (step, otherwise) = (Expr::Ident(STEP.to_owned()), Expr::Literal(LiteralValue::Boolean(false.into())));
    let args = vec![IdedExpr { id, expr: step }, guarded, IdedExpr { id, expr: otherwise }];
    let call = CallExpr { func_name: operators::CONDITIONAL.to_owned(), target: None, args };
    *expression = IdedExpr { id, expr: Expr::Call(call) };
}

/// Counter of the work of one evaluation.
#[derive(Debug)]
pub(super) struct Meter {
    limits: RuleLimits,
    spent: AtomicU64,
    charges: AtomicU64,
    started: Option<Duration>,
    exceeded: OnceLock<String>,
}

impl Meter {
    /// Starts counting on this thread.
    pub(super) fn start(limits: RuleLimits) -> Self {
        let started = limits.cpu.map(|_| cpu_time());
        Self { limits, spent: AtomicU64::new(0), charges: AtomicU64::new(0), started, exceeded: OnceLock::new() }
    }

    /// Counts steps; returns `false` once a limit is exceeded.
    pub(super) fn charge(&self, steps: u64) -> bool {
        let spent = self.spent.fetch_add(steps, Relaxed).saturating_add(steps);
        if spent > self.limits.steps {
            drop(self.exceeded.set(format!("it took more than {} steps", self.limits.steps)));
        }
        if self.charges.fetch_add(1, Relaxed) % CPU_EVERY == CPU_EVERY - 1 {
            self.check_time();
        }
        self.exceeded.get().is_none()
    }

    /// Reads the CPU time, if it is limited.
    pub(super) fn check_time(&self) {
        if let (Some(started), Some(max)) = (self.started, self.limits.cpu)
            && cpu_time().saturating_sub(started) > max
        {
            drop(self.exceeded.set(format!("it took more than {} ms of CPU time", max.as_millis())));
        }
    }

    /// Returns a description of the exceeded limit.
    pub(super) fn exceeded(&self) -> Option<&str> {
        self.exceeded.get().map(String::as_str)
    }
}
