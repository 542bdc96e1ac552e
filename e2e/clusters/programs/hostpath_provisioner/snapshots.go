package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// VolumeSnapshots are copies of directories. This program is the snapshot controller too: it writes
// the status of a VolumeSnapshot, and no VolumeSnapshotContent.
var snapshotResource = schema.GroupVersionResource{
	Group: "snapshot.storage.k8s.io", Version: "v1", Resource: "volumesnapshots",
}

// snapshotAll takes the snapshots of this provisioner's volumes, and removes those that are deleted.
// It does nothing while the cluster does not have the resource.
func (p *provisioner) snapshotAll(ctx context.Context) {
	found, err := p.dynamic.Resource(snapshotResource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	wanted := map[string]bool{}
	for i := range found.Items {
		snapshot := &found.Items[i]
		wanted[string(snapshot.GetUID())] = true
		ready, _, _ := unstructured.NestedBool(snapshot.Object, "status", "readyToUse")
		if ready || snapshot.GetDeletionTimestamp() != nil {
			continue
		}
		if err := p.snapshot(ctx, snapshot); err != nil {
			klog.ErrorS(err, "cannot take the snapshot", "snapshot", klog.KObj(snapshot))
		}
	}
	taken, _ := os.ReadDir(p.snapshots())
	for _, each := range taken {
		if !wanted[each.Name()] {
			_ = os.RemoveAll(filepath.Join(p.snapshots(), each.Name()))
		}
	}
}

func (p *provisioner) snapshot(ctx context.Context, snapshot *unstructured.Unstructured) error {
	name, _, _ := unstructured.NestedString(
		snapshot.Object, "spec", "source", "persistentVolumeClaimName")
	claim, err := p.claims.PersistentVolumeClaims(snapshot.GetNamespace()).Get(name)
	if err != nil {
		return err
	}
	volume, err := p.volumes.Get(claim.Spec.VolumeName)
	if err != nil || volume.Spec.HostPath == nil || !p.provisioned(volume) {
		return err
	}
	path := filepath.Join(p.snapshots(), string(snapshot.GetUID()))
	if err := create(path, volume.Spec.HostPath.Path); err != nil {
		return err
	}
	size := volume.Spec.Capacity[v1.ResourceStorage]
	patch, _ := json.Marshal(map[string]any{"status": map[string]any{
		"readyToUse":   true,
		"creationTime": time.Now().UTC().Format(time.RFC3339),
		"restoreSize":  &size,
	}})
	_, err = p.dynamic.Resource(snapshotResource).Namespace(snapshot.GetNamespace()).Patch(
		ctx, snapshot.GetName(), types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// snapshotSource returns the directory of a snapshot from which a claim is restored.
func (p *provisioner) snapshotSource(ctx context.Context, namespace, name string) (string, error) {
	snapshot, err := p.dynamic.Resource(snapshotResource).Namespace(namespace).Get(
		ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if ready, _, _ := unstructured.NestedBool(snapshot.Object, "status", "readyToUse"); !ready {
		return "", fmt.Errorf("snapshot %s is not ready", name)
	}
	return filepath.Join(p.snapshots(), string(snapshot.GetUID())), nil
}

func (p *provisioner) snapshots() string {
	return filepath.Join(p.folder, "snapshots")
}
