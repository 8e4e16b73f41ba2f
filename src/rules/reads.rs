//! Fields that an expression reads, so that only these are decoded.

use cel::{
    IdedExpr,
    common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue, operators},
};

/// Part of a value that is read.
///
/// The existence and type of a value are always read, and a scalar is read as a whole. Members apply if the value is an
/// object, elements if it is a list; both are recorded because the type is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    /// Set if the whole value is read, regardless of the other fields.
    whole: bool,
    /// Members that are read, with the part of each.
    members: Vec<(Box<str>, Part)>,
    /// Set if the keys of all members are read.
    keys: bool,
    /// Part of each element that is read; with it, the number of elements is read too.
    elements: Option<Box<Part>>,
}

impl Part {
    /// Returns true if the whole value is read.
    pub(super) fn is_whole(&self) -> bool {
        self.whole
    }

    /// Returns the number of members of which more than the key is read.
    pub(super) fn members(&self) -> usize {
        self.members.len()
    }

    /// Returns the part of a member that is read; `None` if at most its key is read.
    pub(super) fn member(&self, key: &[u8]) -> Option<&Self> {
        self.members.iter().find(|(name, _)| name.as_bytes() == key).map(|(_, part)| part)
    }

    /// Returns true if the keys of all members are read.
    pub(super) fn has_keys(&self) -> bool {
        self.keys
    }

    /// Returns the part of each element that is read; `None` if not even the number of elements is read.
    pub(super) fn elements(&self) -> Option<&Self> {
        self.elements.as_deref()
    }

    /// Collects the names that lead to each part, through objects only.
    pub(super) fn collect_paths<'a>(&'a self, path: &mut Vec<&'a str>, paths: &mut Vec<Vec<&'a str>>) {
        if self.members.is_empty() && !path.is_empty() {
            paths.push(path.clone());
        }
        for (name, part) in &self.members {
            path.push(name);
            part.collect_paths(path, paths);
            path.pop();
        }
    }

    fn at(&mut self, path: &[Step<'_>]) -> &mut Self {
        let Some((step, rest)) = path.split_first() else { return self };
        let below = match *step {
            Step::Element => &mut **self.elements.get_or_insert_default(),
            Step::Member(name) => {
                let index = self.members.iter().position(|(member, _)| **member == *name).unwrap_or_else(|| {
                    self.members.push((name.into(), Self::default()));
                    self.members.len() - 1
                });
                &mut self.members[index].1
            }
        };
        below.at(rest)
    }
}

/// Fields that an expression reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reads {
    /// Part of `object`.
    pub(super) object: Part,
    /// Part of `old`.
    pub(super) old: Part,
}

impl Reads {
    pub(super) fn of(expression: &IdedExpr) -> Self {
        let mut reader = Reader::default();
        reader.used(expression);
        reader.reads
    }

    /// Returns that both are read as a whole.
    #[cfg(test)]
    pub(super) fn all() -> Self {
        let all = || Part { whole: true, ..Part::default() };
        Self { object: all(), old: all() }
    }
}

/// Location of a value, or of one of several values with the same reads.
#[derive(Clone, Debug)]
struct Place<'a> {
    root: Root,
    path: Vec<Step<'a>>,
}

#[derive(Clone, Copy, Debug)]
enum Root {
    Object,
    Old,
}

#[derive(Clone, Copy, Debug)]
enum Step<'a> {
    /// A member with this name.
    Member(&'a str),
    /// Any of the elements.
    Element,
}

impl<'a> Place<'a> {
    fn then(mut self, step: Step<'a>) -> Self {
        self.path.push(step);
        self
    }
}

/// Follows values from the variables to their uses. A value whose use is not understood is read as a whole.
#[derive(Default)]
struct Reader<'a> {
    reads: Reads,
    /// Names bound by enclosing macros, and their locations; `None` for a value that was already recorded when it was
    /// computed.
    bound: Vec<(&'a str, Option<Place<'a>>)>,
}

impl<'a> Reader<'a> {
    /// Records the reads of an expression whose value may be used in any way.
    fn used(&mut self, expression: &'a IdedExpr) {
        if let Some(place) = self.place(expression) {
            self.part(&place).whole = true;
            return;
        }
        match &expression.expr {
            Expr::Select(select) if select.test => match self.place(&select.operand) {
                Some(place) => {
                    self.part(&place.then(Step::Member(&select.field)));
                }
                None => self.used(&select.operand),
            },
            Expr::Call(call) => self.call(expression, call),
            Expr::Comprehension(all) => {
                let element = if all.iter_var2.is_some() {
                    self.used(&all.iter_range);
                    None
                } else {
                    self.gone_over(&all.iter_range)
                };
                self.used(&all.accu_init);
                self.within(all, element, &[&all.loop_cond, &all.loop_step, &all.result]);
            }
            _ => self.children_used(expression),
        }
    }

    fn call(&mut self, expression: &'a IdedExpr, call: &'a CallExpr) {
        match (call.func_name.as_str(), call.target.as_deref(), call.args.as_slice()) {
            ("size", Some(measured), []) | ("size", None, [measured]) => {
                self.gone_over(measured);
            }
            (operators::IN, None, [sought, range]) => {
                self.used(sought);
                let Some(place) = self.place(range) else { return self.used(range) };
                let part = self.part(&place);
                match text(sought) {
                    Some(key) => {
                        part.at(&[Step::Member(key)]);
                    }
                    None => part.keys = true,
                }
                part.at(&[Step::Element]).whole = true;
            }
            _ => self.children_used(expression),
        }
    }

    fn children_used(&mut self, expression: &'a IdedExpr) {
        for child in children(expression) {
            self.used(child);
        }
    }

    /// Records that a value is iterated or counted; returns the location of its elements.
    fn gone_over(&mut self, range: &'a IdedExpr) -> Option<Place<'a>> {
        let place = self.place(range);
        if place.is_none() {
            self.used(range);
        }
        place.map(|place| self.each(&place))
    }

    /// Records that the elements or keys of a value are read one by one; returns the location of the elements.
    fn each(&mut self, range: &Place<'a>) -> Place<'a> {
        let part = self.part(range);
        part.keys = true;
        part.at(&[Step::Element]);
        range.clone().then(Step::Element)
    }

    /// Records the reads of a macro's inner expressions.
    fn within(&mut self, all: &'a ComprehensionExpr, element: Option<Place<'a>>, inner: &[&'a IdedExpr]) {
        let outside = self.bound.len();
        self.bound.extend(all.iter_var2.as_deref().map(|name| (name, None)));
        self.bound.extend([(all.accu_var.as_str(), None), (all.iter_var.as_str(), element)]);
        for inner in inner {
            self.used(inner);
        }
        self.bound.truncate(outside);
    }

    /// Returns the location of an expression's value; `None` if it is not a part of a variable.
    fn place(&mut self, expression: &'a IdedExpr) -> Option<Place<'a>> {
        match &expression.expr {
            Expr::Ident(name) => self.named(name),
            Expr::Select(select) if !select.test => {
                Some(self.place(&select.operand)?.then(Step::Member(&select.field)))
            }
            Expr::Call(call) if call.func_name == operators::INDEX => {
                let [operand, index] = call.args.as_slice() else { return None };
                let step = match &index.expr {
                    Expr::Literal(LiteralValue::Int(_) | LiteralValue::UInt(_)) => Step::Element,
                    _ => Step::Member(text(index)?),
                };
                Some(self.place(operand)?.then(step))
            }
            // a filtered list has the location of the list; a filtered object has only keys, and all keys are read
            Expr::Comprehension(all) => {
                let condition = filter_condition(all)?;
                let range = self.place(&all.iter_range)?;
                let element = self.each(&range);
                self.within(all, Some(element), &[condition]);
                Some(range)
            }
            _ => None,
        }
    }

    /// Returns the location that a name stands for: in the innermost macro that binds it, or as a variable.
    fn named(&self, name: &str) -> Option<Place<'a>> {
        if let Some((_, bound)) = self.bound.iter().rev().find(|(bound, _)| *bound == name) {
            return bound.clone();
        }
        let root = match name.trim_start_matches('.') {
            "object" => Root::Object,
            "old" => Root::Old,
            _ => return None,
        };
        Some(Place { root, path: Vec::new() })
    }

    fn part(&mut self, place: &Place<'_>) -> &mut Part {
        let root = match place.root {
            Root::Object => &mut self.reads.object,
            Root::Old => &mut self.reads.old,
        };
        root.at(&place.path)
    }
}

/// Returns the text of a string literal.
pub(super) fn text(expression: &IdedExpr) -> Option<&str> {
    match &expression.expr {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner()),
        _ => None,
    }
}

/// Returns the condition of a `filter` macro.
fn filter_condition(all: &ComprehensionExpr) -> Option<&IdedExpr> {
    let is = |expression: &IdedExpr, name: &str| matches!(&expression.expr, Expr::Ident(it) if it == name);
    let is_made = |expression: &IdedExpr| is(expression, &all.accu_var);
    let [condition, longer, same] = arguments(&all.loop_step, operators::CONDITIONAL)? else { return None };
    let [made, more] = arguments(longer, operators::ADD)? else { return None };
    let [one] = list(more)? else { return None };
    let is_filter = list(&all.accu_init)?.is_empty()
        && matches!(all.loop_cond.expr, Expr::Literal(_))
        && [made, same, &all.result].into_iter().all(is_made)
        && is(one, &all.iter_var)
        && all.iter_var != all.accu_var
        && all.iter_var2.is_none();
    is_filter.then_some(condition)
}

fn arguments<'a>(expression: &'a IdedExpr, function: &str) -> Option<&'a [IdedExpr]> {
    match &expression.expr {
        Expr::Call(call) if call.func_name == function && call.target.is_none() => Some(&call.args),
        _ => None,
    }
}

fn list(expression: &IdedExpr) -> Option<&[IdedExpr]> {
    match &expression.expr {
        Expr::List(list) if list.optional_indices.is_empty() => Some(&list.elements),
        _ => None,
    }
}

/// Returns the direct subexpressions of an expression.
pub(super) fn children(expression: &IdedExpr) -> Vec<&IdedExpr> {
    match &expression.expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
        Expr::Call(call) => call.target.iter().map(|target| &**target).chain(&call.args).collect(),
        Expr::Comprehension(all) => {
            vec![&all.iter_range, &all.accu_init, &all.loop_cond, &all.loop_step, &all.result]
        }
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Select(select) => vec![&*select.operand],
        Expr::Map(map) => map.entries.iter().flat_map(|entry| parts(&entry.expr)).collect(),
        Expr::Struct(made) => made.entries.iter().flat_map(|entry| parts(&entry.expr)).collect(),
    }
}

fn parts(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&field.value],
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Formats reads as `spec{replicas!, x}`. `!` means the whole value, `{*}` all keys, `[x]` x of each element.
    fn show(part: &Part) -> String {
        let members = part.members.iter().map(|(name, part)| format!("{name}{}", show(part)));
        let members: Vec<_> = part.keys.then(|| "*".to_owned()).into_iter().chain(members).collect();
        let members = if members.is_empty() { String::new() } else { format!("{{{}}}", members.join(", ")) };
        let elements = part.elements().map(|element| format!("[{}]", show(element))).unwrap_or_default();
        format!("{}{members}{elements}", if part.whole { "!" } else { "" })
    }

    #[track_caller]
    fn check(expression: &str, object: &str, old: &str) {
        let program = cel::Env::stdlib().compile(expression).expect(expression);
        let reads = Reads::of(program.expression());
        assert_eq!((show(&reads.object).as_str(), show(&reads.old).as_str()), (object, old), "{expression}");
    }

    #[test]
    fn only_named_fields_are_read() {
        check("true", "", "");
        check("type == 'added'", "", "");
        check("object.metadata.namespace == 'a'", "{metadata{namespace!}}", "");
        check("object.spec.replicas > old.spec.replicas", "{spec{replicas!}}", "{spec{replicas!}}");
        check("object.metadata.labels['a/b'] == 'x'", "{metadata{labels{a/b!}}}", "");
        check("has(object.spec.paused)", "{spec{paused}}", "");
        check("has(object.spec) && object.spec.x == 1", "{spec{x!}}", "");
        check("object.spec[cluster] == 1", "{spec!}", "");
        check("object.metadata.name.startsWith('x')", "{metadata{name!}}", "");
        check(".object.kind == 'Pod'", "{kind!}", "");
    }

    #[test]
    fn whole_object_use_reads_everything() {
        check("object == old", "!", "!");
        check("[object].exists(o, o.a == 1)", "!", "");
        check("{'a': object.b}.a == 1 && object.?c.orValue(1) == 1", "!{b!}", "");
    }

    #[test]
    fn iteration_reads_list_elements_and_map_keys() {
        check("object.a.exists(c, c.image == 'x')", "{a{*}[{image!}]}", "");
        check("object.a.all(c, has(c.image))", "{a{*}[{image}]}", "");
        check("object.a.exists_one(c, c.a.b == 1 || c['d'] == 1)", "{a{*}[{a{b!}, d!}]}", "");
        check("object.a.map(c, c.image) != old.a.map(c, c.image)", "{a{*}[{image!}]}", "{a{*}[{image!}]}");
        check("object.a.map(c, c.a == 1, c.b) == []", "{a{*}[{a!, b!}]}", "");
        check("object.a.exists(c, c.ports.exists(p, p.name == 'http'))", "{a{*}[{ports{*}[{name!}]}]}", "");
        check("object.a.exists(c, old.a.all(d, d.x != c.x))", "{a{*}[{x!}]}", "{a{*}[{x!}]}");
        check("object.a.exists(c, true)", "{a{*}[]}", "");
        check("object.exists(k, k == 'a')", "{*}[!]", "");
        check("object.a[0].image == 'x' || object.a[1u].b == 1", "{a[{image!, b!}]}", "");
        check("object.a[0] == object.b[0.0]", "{a[!], b!}", "");
        check("size(object.a) > object.b.size()", "{a{*}[], b{*}[]}", "");
        check("'a' in object.b && object.c in old.d", "{b{a}[!], c!}", "{d{*}[!]}");
    }

    #[test]
    fn filter_results_are_tracked() {
        check("object.a.filter(c, c.x == 1).size() > 0", "{a{*}[{x!}]}", "");
        check("object.a.filter(c, c.x == 1).filter(d, d.y).exists(c, c.z == 1)", "{a{*}[{x!, y!, z!}]}", "");
        check("object.a.filter(c, c.x == 1)[0].y == 1", "{a{*}[{x!, y!}]}", "");
        check("object.a.filter(c, c.x == 1) == []", "{a!{*}[{x!}]}", "");
        check("object.a.filter(c, c.x == 1).map(c, c).size() == 1", "{a{*}[!{x!}]}", "");
    }

    #[test]
    fn escaping_variable_is_read_as_a_whole() {
        for escape in
            ["c == 'x'", "c in [1]", "1 in [c]", "string(c) == 'x'", "{'a': c}.a.b == 1", "[c].exists(d, d.x == 1)"]
        {
            check(&format!("object.a.exists(c, {escape})"), "{a{*}[!]}", "");
        }
        check("object.a.map(c, c).exists(d, d.x == 1)", "{a{*}[!]}", "");
        check("object.a.map(c, {'x': c})[0].x.y == 1", "{a{*}[!]}", "");
        check("object.a.exists(c, (c.x == 1 ? c : c.y).z == 1)", "{a{*}[!{x!, y!}]}", "");
        check("object.a.exists(c, object.b[c.x].y == 1)", "{a{*}[{x!}], b!}", "");
    }

    #[test]
    fn name_refers_to_innermost_macro_variable() {
        check("object.a.exists(c, old.b.exists(c, c.x == 1) && c.y == 1)", "{a{*}[{y!}]}", "{b{*}[{x!}]}");
        check("object.a.exists(object, object.x == 1) && object.y == 1", "{a{*}[{x!}], y!}", "");
        check("old.a.exists(object, .object.x == object.y)", "{x!}", "{a{*}[{y!}]}");
        check("object.a.exists(c, [1].exists(c, c.x == 1))", "{a{*}[]}", "");
        check("object.a.exists(c, c.b.exists(c, c.x == 1))", "{a{*}[{b{*}[{x!}]}]}", "");
        check("object.a.exists(c, object.?b.optMap(c, c.x == 1).orValue(true))", "!{a{*}[]}", "");
    }
}
