package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"deltabus.dev/cluster/internal/tool"
)

const (
	churnNamespaces = 2  // those of churn.yaml
	churnShards     = 20 // label values by which deletions of collections select
)

//go:embed churn.yaml
var churnSetup []byte

// churn is a random workload: many clients write few names, so that they conflict and names are reused with new uids.
type churn struct {
	client dynamic.Interface
	kinds  []churnKind
	names  int           // of each type in each namespace
	until  time.Time     // zero: no limit
	pause  time.Duration // of each client between two operations
	counts churnCounts
}

// churnCounts counts the server's operations. A deletion of a collection counts once.
type churnCounts struct {
	ops, created, updated, deleted, collectionsDeleted, conflicts, retries atomic.Int64
}

func runChurn(args []string) error {
	flags := flag.NewFlagSet("churn", flag.ExitOnError)
	config := clientFlags(flags)
	setup := flags.Bool("setup", false, "first make the namespaces churn-0 and churn-1 and the type widgets.test.deltabus.dev")
	ops := flags.Int("ops", 0, "operations in total, shared out among the clients (0: as --duration allows)")
	clients := flags.Int("clients", 4, "clients at a time")
	seed := flags.Uint64("seed", 1, "of the random choices; what comes of them still depends on the clients' race")
	duration := flags.Duration("duration", 0, "stop after this time (0: when the operations are done)")
	rate := flags.Float64("rate", 0, "operations a second of all clients together, at most (0: as fast as can be)")
	names := flags.Int("names", 200, "names of each type, over both namespaces")
	resources := flags.String("resources", "", "comma-separated, of pods, configmaps, deployments.apps, widgets.test.deltabus.dev (empty: all)")
	flags.Parse(args)

	restConfig, err := config()
	if err != nil {
		return err
	}
	ctx := context.Background()
	if *setup {
		if err := setUpChurn(ctx, restConfig); err != nil {
			return err
		}
	}
	c := &churn{names: max(1, *names/churnNamespaces)}
	if c.client, err = dynamic.NewForConfig(restConfig); err != nil {
		return err
	}
	if c.kinds, err = selectKinds(*resources); err != nil {
		return err
	}
	if *duration > 0 {
		c.until = time.Now().Add(*duration)
	}
	if *rate > 0 {
		c.pause = time.Duration(float64(*clients) / *rate * float64(time.Second))
	}
	started := time.Now()
	if *ops > 0 || *duration > 0 {
		err = c.run(ctx, *clients, *ops, *seed)
	}
	return finishChurn(c, *seed, time.Since(started), err)
}

func finishChurn(c *churn, seed uint64, took time.Duration, err error) error {
	if err != nil {
		return fmt.Errorf("seed %d: %w", seed, err)
	}
	return tool.PrintJSON(map[string]any{
		"seed": seed, "seconds": took.Seconds(), "ops": c.counts.ops.Load(),
		"created": c.counts.created.Load(), "updated": c.counts.updated.Load(), "deleted": c.counts.deleted.Load(),
		"collections_deleted": c.counts.collectionsDeleted.Load(),
		"conflicts":           c.counts.conflicts.Load(), "retries": c.counts.retries.Load(),
	})
}

func setUpChurn(ctx context.Context, config *rest.Config) error {
	applier, err := newApplier(config)
	if err != nil {
		return err
	}
	return applier.applyAll(ctx, bytes.NewReader(churnSetup), func(*unstructured.Unstructured) error { return nil })
}

func selectKinds(resources string) ([]churnKind, error) {
	if resources == "" {
		return churnKinds, nil
	}
	var kinds []churnKind
	for name := range strings.SplitSeq(resources, ",") {
		at := slices.IndexFunc(churnKinds, func(kind churnKind) bool { return kind.name == name })
		if at < 0 {
			return nil, fmt.Errorf("churn does not know %q", name)
		}
		kinds = append(kinds, churnKinds[at])
	}
	return kinds, nil
}

// run starts the clients and waits for all of them. It returns the first error.
func (c *churn) run(ctx context.Context, clients, ops int, seed uint64) error {
	failures := make(chan error, clients)
	var running sync.WaitGroup
	for i := range clients {
		share := ops / clients
		if i < ops%clients {
			share++
		}
		if ops > 0 && share == 0 {
			continue
		}
		running.Go(func() {
			if err := c.runClient(ctx, rand.New(rand.NewPCG(seed, uint64(i))), share); err != nil {
				failures <- fmt.Errorf("client %d: %w", i, err)
			}
		})
	}
	running.Wait()
	close(failures)
	return <-failures
}

// runClient does ops operations until the time is over; 0 means no limit.
func (c *churn) runClient(ctx context.Context, r *rand.Rand, ops int) error {
	for done := 0; ops == 0 || done < ops; done++ {
		if !c.until.IsZero() && time.Now().After(c.until) {
			return nil
		}
		if err := c.operate(ctx, r); err != nil {
			return err
		}
		c.counts.ops.Add(1)
		time.Sleep(c.pause)
	}
	return nil
}

// operate does one operation on one random object. It draws all random values before it acts, so that a client's
// choices depend only on the seed and not on other clients.
func (c *churn) operate(ctx context.Context, r *rand.Rand) error {
	kind := c.pickKind(r)
	namespace := fmt.Sprintf("churn-%d", r.IntN(churnNamespaces))
	target := churnTarget{
		churn:  c,
		client: c.client.Resource(kind.resource).Namespace(namespace),
		object: kind.newObject(r, namespace, fmt.Sprintf("%s-%d", strings.ToLower(kind.kind), r.IntN(c.names))),
		change: kind.randomChange(r),
	}
	shard, choice := r.IntN(churnShards), r.IntN(1000)
	switch {
	case choice < 4:
		return target.deleteCollection(ctx, shard)
	case choice < 200:
		return target.delete(ctx)
	case choice < 350: // recreate the same name at once, with another uid
		if err := target.delete(ctx); err != nil {
			return err
		}
		return target.createOrUpdate(ctx)
	case choice < 550:
		return target.createOrUpdate(ctx)
	default:
		return target.updateOrCreate(ctx)
	}
}

func (c *churn) pickKind(r *rand.Rand) churnKind {
	total := 0
	for _, kind := range c.kinds {
		total += kind.weight
	}
	at := r.IntN(total)
	for _, kind := range c.kinds {
		if at -= kind.weight; at < 0 {
			return kind
		}
	}
	panic("the weights add up to the total")
}

// churnChange is a change of an existing object: a merge patch, or a read and a write of the whole object.
type churnChange struct {
	patch       []byte // nil: read and write
	subresource []string
	label       string
}

func (k churnKind) randomChange(r *rand.Rand) churnChange {
	number := fmt.Sprint(r.IntN(1000))
	var patch map[string]any
	choice := r.IntN(100)
	switch {
	case choice < 25:
		patch = map[string]any{"metadata": map[string]any{"labels": map[string]any{"round": number}}}
	case choice < 40:
		patch = map[string]any{"metadata": map[string]any{"annotations": map[string]any{"test.deltabus.dev/note": number}}}
	case choice < 45:
		patch = map[string]any{"metadata": map[string]any{"labels": map[string]any{"round": nil, "tier": pick(r, "web", "cache", "db")}}}
	case choice < 50:
		patch = map[string]any{} // changes nothing: the server sends no event
	case choice < 70 && k.status != nil:
		return churnChange{patch: mustMarshal(map[string]any{"status": k.status(r)}), subresource: []string{"status"}}
	case choice < 85 && k.specPatch != nil:
		patch = k.specPatch(r)
	default:
		return churnChange{label: number}
	}
	return churnChange{patch: mustMarshal(patch)}
}

func mustMarshal(value map[string]any) []byte {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // maps of strings and numbers always marshal
	}
	return text
}

// churnTarget is the object of an operation.
type churnTarget struct {
	churn  *churn
	client dynamic.ResourceInterface
	object *unstructured.Unstructured
	change churnChange
}

// try repeats attempt while the server is down; it returns true if the attempt succeeded. Conflicts are not errors.
func (t churnTarget) try(ctx context.Context, done *atomic.Int64, attempt func() error) (bool, error) {
	counts := &t.churn.counts
	err := retry(ctx, func() { counts.retries.Add(1) }, attempt)
	switch {
	case err == nil:
		done.Add(1)
		return true, nil
	case apierrors.IsConflict(err), apierrors.IsInvalid(err):
		// Some types answer Invalid if the object was recreated since it was read, because its uid differs.
		counts.conflicts.Add(1)
		return true, nil
	case apierrors.IsNotFound(err), apierrors.IsAlreadyExists(err):
		return false, nil
	default:
		return false, fmt.Errorf("%s %s/%s: %w", t.object.GetKind(), t.object.GetNamespace(), t.object.GetName(), err)
	}
}

func (t churnTarget) createOrUpdate(ctx context.Context) error {
	if created, err := t.create(ctx); created || err != nil {
		return err
	}
	_, err := t.update(ctx)
	return err
}

func (t churnTarget) updateOrCreate(ctx context.Context) error {
	if updated, err := t.update(ctx); updated || err != nil {
		return err
	}
	_, err := t.create(ctx)
	return err
}

func (t churnTarget) create(ctx context.Context) (bool, error) {
	return t.try(ctx, &t.churn.counts.created, func() error {
		_, err := t.client.Create(ctx, t.object, metav1.CreateOptions{})
		return err
	})
}

func (t churnTarget) update(ctx context.Context) (bool, error) {
	return t.try(ctx, &t.churn.counts.updated, func() error {
		if t.change.patch != nil {
			_, err := t.client.Patch(ctx, t.object.GetName(), types.MergePatchType, t.change.patch, metav1.PatchOptions{}, t.change.subresource...)
			return err
		}
		current, err := t.client.Get(ctx, t.object.GetName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		labels := current.GetLabels()
		labels["round"] = t.change.label
		current.SetLabels(labels)
		_, err = t.client.Update(ctx, current, metav1.UpdateOptions{})
		return err
	})
}

// delete deletes the object, and removes its finalizer if it has one.
func (t churnTarget) delete(ctx context.Context) error {
	name := t.object.GetName()
	deleted, err := t.try(ctx, &t.churn.counts.deleted, func() error { return t.client.Delete(ctx, name, atOnce()) })
	if !deleted || err != nil {
		return err
	}
	var patched atomic.Int64 // the second half of a deletion does not count as an update
	_, err = t.try(ctx, &patched, func() error {
		current, err := t.client.Get(ctx, name, metav1.GetOptions{})
		if err != nil || current.GetDeletionTimestamp() == nil {
			return err
		}
		patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"finalizers":null}}`, current.GetUID())
		_, err = t.client.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
	return err
}

// deleteCollection deletes all objects of the type in the namespace with one label value: a burst of deletions.
func (t churnTarget) deleteCollection(ctx context.Context, shard int) error {
	_, err := t.try(ctx, &t.churn.counts.collectionsDeleted, func() error {
		return t.client.DeleteCollection(ctx, atOnce(), metav1.ListOptions{LabelSelector: fmt.Sprintf("app=churn,shard=%d", shard)})
	})
	return err
}

func atOnce() metav1.DeleteOptions {
	now := int64(0)
	return metav1.DeleteOptions{GracePeriodSeconds: &now}
}
