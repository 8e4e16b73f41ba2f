package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	readyTimeout = 2 * time.Minute
	readyPause   = 200 * time.Millisecond
)

// ensureNodes creates nodes whose kubelets kwok simulates, and waits until the scheduler can use them.
func ensureNodes(ctx context.Context, kubeconfig string, count int) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, fmt.Errorf("not within %s", readyTimeout))
	defer cancel()
	for number := range count {
		if _, err := client.CoreV1().Nodes().Create(ctx, node(number), metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("failed to create a node: %w", err)
		}
	}
	for {
		list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		ready := 0
		if err == nil {
			for i := range list.Items {
				if isReady(&list.Items[i]) {
					ready++
				}
			}
			if ready >= count {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d nodes became ready: %w", ready, count, errors.Join(context.Cause(ctx), err))
		case <-time.After(readyPause):
		}
	}
}

func node(number int) *corev1.Node {
	name := fmt.Sprintf("node-%d", number)
	resources := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("32"),
		corev1.ResourceMemory: resource.MustParse("256Gi"),
		corev1.ResourcePods:   resource.MustParse("250"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name,
			Labels: map[string]string{
				"kubernetes.io/arch":          "amd64",
				"kubernetes.io/hostname":      name,
				"kubernetes.io/os":            "linux",
				"topology.kubernetes.io/zone": fmt.Sprintf("zone-%c", 'a'+number%3),
			},
		},
		Status: corev1.NodeStatus{Allocatable: resources, Capacity: resources},
	}
}

// isReady also requires that the node lifecycle controller has removed the taint of new nodes.
func isReady(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue && len(node.Spec.Taints) == 0
		}
	}
	return false
}
